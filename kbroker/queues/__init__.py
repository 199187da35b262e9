"""What message queues have and Kafka lacks, per topic and opt-in."""
