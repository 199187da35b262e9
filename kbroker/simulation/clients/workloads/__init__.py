"""Workloads: programs that use the simulated clients as applications do."""
