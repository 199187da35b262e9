"""Connections of simulated clients: bootstrap, coordinators, API versions."""
