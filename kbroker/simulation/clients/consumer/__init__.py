"""Consumers and group members of the simulation."""
