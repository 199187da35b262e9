"""`kbroker pipeline`."""
