"""Replication throttles (KIP-73): which replicas are throttled, and whether their quota is exceeded."""
