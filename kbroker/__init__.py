"""kbroker: a message queue that speaks the Kafka wire protocol."""

__version__ = "0.1.0"
