"""`kbroker archive repair`: restores damaged tables, from their own files and from the broker."""
