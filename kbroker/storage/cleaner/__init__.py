"""Log compaction: what may be compacted, the work itself, and the swap of segments."""
