"""Invariants of brokers and of the cluster, checked from outside while they run."""
