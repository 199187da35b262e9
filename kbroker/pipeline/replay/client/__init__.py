"""A blocking Kafka client on plain sockets, for the tasks that send a replay's records."""
