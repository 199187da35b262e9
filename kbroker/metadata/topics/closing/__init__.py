"""Closing partitions: the states on the way to their removal, and what writes them to the coordination service."""
