"""`kbroker archive verify`: checks an archive, and compares it with the broker."""
