"""The controller's decisions about topics: pure functions from a request to a plan, with Kafka's errors."""
