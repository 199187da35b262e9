"""A simulated network between hosts: latency, cut links, resets."""
