"""A simulated ZooKeeper ensemble: sessions, watches, cut and delayed messages."""
