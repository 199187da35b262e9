"""Ports for servers of tests and benchmarks, which several processes choose at the same time.

A port that was unused a moment ago may be chosen by another process before its server listens there, and a server that
is starting does not listen yet. So each process locks the ports that it has chosen until it ends.
"""

import fcntl
import os
import random
import socket
import tempfile

# Below the range of outgoing connections, which is from 32768: a server that is restarted needs the same port again.
LOWEST_PORT, HIGHEST_PORT = 20_000, 30_000

_chosen: set[int] = set()
# The open lock file. Closing it would end all locks of this process.
_lock_file: list[int] = []


def free_ports(count: int = 1) -> int:
    """Return the first of some consecutive ports which no server uses, and which nobody else gets from this function.

    The ports belong to this process until it ends.
    """
    while True:
        first = random.SystemRandom().randrange(LOWEST_PORT, HIGHEST_PORT - count)
        ports = range(first, first + count)
        if _chosen.isdisjoint(ports) and _lock(first, count):
            if all(map(_is_unused, ports)):
                _chosen.update(ports)
                return first
            fcntl.lockf(_lock_file[0], fcntl.LOCK_UN, count, first)


def _lock(first: int, count: int) -> bool:
    """Lock one byte for each port, so that the locks need one file descriptor only."""
    if not _lock_file:
        path = os.path.join(tempfile.gettempdir(), f"kbroker-ports-{os.getuid()}.lock")
        _lock_file.append(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    try:
        fcntl.lockf(_lock_file[0], fcntl.LOCK_EX | fcntl.LOCK_NB, count, first)
    except (BlockingIOError, PermissionError):
        return False
    return True


def _is_unused(port: int) -> bool:
    """Bind the port without listening, which could make a server that starts fail."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
