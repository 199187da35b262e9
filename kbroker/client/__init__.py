"""A blocking client of Kafka's protocol, for the command line and the data pipeline. It imports fast."""
