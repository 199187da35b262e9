"""The console as a child process of a broker: `kbroker console` that ends when standard input does, with its parent."""

import os
import signal
import sys
import threading

from kbroker.cli.app import run

# Processor time goes to the broker first.
NICENESS = 10
STDIN = 0


def _stop_with_parent() -> None:
    os.read(STDIN, 1)
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    os.nice(NICENESS)
    # The signals of the parent's terminal are for the parent.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_stop_with_parent, daemon=True).start()
    sys.exit(run(["console", *sys.argv[1:]]))
