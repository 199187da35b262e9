"""From an archive back into topics."""
