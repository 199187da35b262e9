"""`kbroker cluster` and `kbroker brokers`."""
