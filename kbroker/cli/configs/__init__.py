"""`kbroker configs` and `kbroker config`."""
