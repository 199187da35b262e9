"""Spark: its installation, Java, the Kafka connector, sessions, and the text of its errors."""
