"""Data files that a writer has not committed yet, and their owner."""
