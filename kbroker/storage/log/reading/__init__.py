"""Reading a log: by offset, by timestamp, and the aborted transactions of what was read."""
