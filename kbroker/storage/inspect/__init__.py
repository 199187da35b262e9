"""Reads log files without trusting or changing them, for `kbroker log dump` and `kbroker log verify`."""
