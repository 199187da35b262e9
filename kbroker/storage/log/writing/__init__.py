"""The write side of a log: appends, rolling, truncation, syncs and checkpoints."""
