"""`kbroker archive`."""
