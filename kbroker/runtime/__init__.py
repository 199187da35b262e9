"""The broker's interface to the machine: clocks, event loop, threads, processes, disk; event log, metrics, timers."""
