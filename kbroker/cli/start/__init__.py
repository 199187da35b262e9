"""`kbroker start`."""
