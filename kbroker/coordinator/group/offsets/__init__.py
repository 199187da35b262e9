"""Committed offsets of groups, pending offsets of transactions, and who may commit them. Pure."""
