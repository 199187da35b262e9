"""`kbroker produce` and `kbroker consume`."""
