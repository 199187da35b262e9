"""Metrics for Prometheus, and the HTTP server that serves them."""
