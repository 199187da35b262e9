"""The Kafka wire protocol: messages, records, framing. No IO; imports nothing of kbroker."""
