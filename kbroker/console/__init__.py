"""The console: pages that show a Kafka cluster in a browser, and change it if that is allowed."""
