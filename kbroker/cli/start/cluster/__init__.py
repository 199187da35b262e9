"""`kbroker start --brokers N`: several brokers on one machine, with the coordination service in their parent."""
