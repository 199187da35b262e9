"""Adapters for kafka-python, confluent-kafka and aiokafka. Each is imported only when it is used."""
