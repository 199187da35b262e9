"""The coordinator runtime: loads the partitions of an internal topic, appends and replays their records."""
