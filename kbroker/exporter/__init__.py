"""What the broker tells Prometheus, and the small HTTP server that serves it."""
