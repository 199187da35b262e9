"""Decisions about replication: leaders, in-sync replicas, broker registrations."""
