"""`kbroker dlq`."""
