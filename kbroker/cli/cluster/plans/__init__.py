"""`kbroker brokers balance`, `drain`, `replace` and `plan`: reassignment plans, which the controller runs."""
