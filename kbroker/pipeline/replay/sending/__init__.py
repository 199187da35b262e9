"""Sends a replay's records: a Spark job, its tasks, and their idempotent producer."""
