"""`kbroker tools`: look at what clients and brokers send each other."""
