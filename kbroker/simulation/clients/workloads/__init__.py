"""Programs that use the clients as applications do."""
