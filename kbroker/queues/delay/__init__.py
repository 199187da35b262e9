"""Delayed and scheduled delivery inside a partition's own log."""
