"""The logs of a data directory: the log manager, checkpoints, the cleaner and periodic tasks."""
