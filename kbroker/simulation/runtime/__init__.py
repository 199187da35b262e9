"""Virtual time: the loop, hosts, clocks, threads, processes, and a machine that a broker runs on."""
