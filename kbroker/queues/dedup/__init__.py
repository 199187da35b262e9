"""Idempotency keys: a record whose key was seen within a window is not stored again."""
