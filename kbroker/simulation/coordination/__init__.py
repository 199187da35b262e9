"""A simulated ZooKeeper ensemble: sessions, watches, partitions."""
