"""Opens a log: loads segments, repairs what an unclean shutdown has left, rebuilds lost state."""
