"""A partition's log: its segments, appends, rolling, retention, checkpoints and leader epochs."""
