"""Delayed delivery: records wait in their partition's log until they are due."""
