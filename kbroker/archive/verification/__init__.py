"""`kbroker archive verify`: checks the tables of an archive, and compares them with the broker."""
