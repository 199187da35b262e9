"""`kbroker brokers balance`, `drain`, `replace`, `execute` and `plan`: plans, which the controller runs."""
