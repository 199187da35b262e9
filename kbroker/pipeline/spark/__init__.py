"""Spark itself: the session, the Kafka connector, Java, and Spark's errors."""
