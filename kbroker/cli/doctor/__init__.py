"""`kbroker doctor`: checks the configuration, the machine and a running broker."""
