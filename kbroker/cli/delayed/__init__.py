"""`kbroker delayed`."""
