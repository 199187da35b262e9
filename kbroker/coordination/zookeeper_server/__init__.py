"""Serves the embedded coordination service in ZooKeeper's protocol, to the brokers of `kbroker start --brokers N`."""
