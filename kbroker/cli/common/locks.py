"""File locks that other processes hold."""

import fcntl
import os


def is_locked(path: str) -> bool:
    """Return whether a process holds a broker's lock on this file, which need not exist. It may change at any time."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False
