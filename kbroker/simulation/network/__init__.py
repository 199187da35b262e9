"""A simulated network between hosts: latency, partitions, resets."""
