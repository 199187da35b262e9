"""What a broker needs of its machine: clock, loop, threads, processes, disk; and the event log, metrics and timers."""
