"""Clients for the simulation, on the project's own codecs. What they ask and are told goes into a History.

They run on any asyncio loop, take time from it and chance from the Random that they are given.
"""
