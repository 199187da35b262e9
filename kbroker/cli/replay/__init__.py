"""`kbroker replay`."""
