"""Producers of the simulation: plain, idempotent, transactional."""
