"""`kbroker retry`."""
