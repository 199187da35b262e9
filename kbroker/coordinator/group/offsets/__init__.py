"""Committed offsets of groups: their replay, validation and expiration; offsets of open transactions (pure)."""
