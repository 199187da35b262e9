"""The log on disk, in Apache Kafka's format."""
