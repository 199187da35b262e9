"""Workloads on topics with delayed delivery, idempotency keys, views, and partitions that close."""
