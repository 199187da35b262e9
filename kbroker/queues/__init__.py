"""Features of message queues that Kafka lacks, enabled by topic configs."""
