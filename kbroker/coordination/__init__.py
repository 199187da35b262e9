"""The coordination service: interface, embedded store with its journal, ZooKeeper, and the server for `--brokers`."""
