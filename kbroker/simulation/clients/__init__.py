"""Kafka clients for the simulation, built on the project's own codecs. They record a History for the checker.

They run on any asyncio loop and take the time from it. Random choices come from the Random passed to them.
"""
