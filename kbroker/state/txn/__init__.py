"""Transactions as decisions over plain state: no clock, no log, no network."""
