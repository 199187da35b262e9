"""Opening a log: loads segments, repairs what an unclean stop left, rebuilds lost state."""
