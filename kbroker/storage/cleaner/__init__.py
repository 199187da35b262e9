"""The log cleaner: finds logs to compact, writes compacted segments in another process, puts them into the log."""
