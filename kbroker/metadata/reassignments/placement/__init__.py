"""Plans that move existing replicas: balance, drain and replace brokers, change the replication factor."""
