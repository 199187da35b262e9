"""Logs on disk, in Apache Kafka's formats."""
