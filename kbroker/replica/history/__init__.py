"""History: records that the log no longer has, read from the archive of the topic by a process beside the broker."""
