"""kbroker: a message queue that speaks the Kafka wire protocol."""
