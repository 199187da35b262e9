"""Runs: scenarios and their faults, plans drawn from a seed, and the programs of a run."""
