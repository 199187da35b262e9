"""A machine in memory from one seed: virtual time, network, disk. Nothing here reads a clock or opens a socket.

Everything that happens on one `SimLoop` is determined by the seed and by the program, so a run can be repeated.
"""
