"""Data directories: those of `kbroker start --brokers N`, and whether a process has locked one."""

import fcntl
import os

from kbroker.storage.file_names import META_PROPERTIES, PARTITION_METADATA


def broker_directory(directory: str, node_id: int) -> str:
    return f"{directory}/broker-{node_id}"


def is_cluster_directory(directory: str) -> bool:
    """Return whether a directory is that of several brokers.

    A data directory may have a partition 1 of a topic `broker`, whose log has the same name.
    """
    first = broker_directory(directory, 1)
    return (
        os.path.isdir(first)
        and not os.path.exists(f"{directory}/{META_PROPERTIES}")
        and not os.path.exists(f"{first}/{PARTITION_METADATA}")
    )


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
