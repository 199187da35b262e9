"""Simulates a machine in memory: virtual time, network, disk. Nothing here reads a real clock or opens a socket.

Everything that happens on one `SimLoop` is determined by the seed and by the program, so a run can be repeated.
"""
