"""The metrics of the broker for Prometheus, and a small HTTP server that serves them."""
