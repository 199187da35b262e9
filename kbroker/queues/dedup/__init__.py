"""Deduplication: a record whose idempotency key was seen within a window is not stored again."""
