"""`kbroker log`: dump and verify the files of a data directory."""
