"""A partition's log: segments, appends, reads, rolling, retention and leader epochs."""
