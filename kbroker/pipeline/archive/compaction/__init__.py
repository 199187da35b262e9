"""`kbroker archive compact`: merges small data files into large ones."""
