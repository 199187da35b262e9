"""`kbroker cluster roll`."""
