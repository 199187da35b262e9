"""Brokers of an earlier parent that still run: started again by hand, or stopped (SIGSTOP) when the parent was killed.

Their coordination service has ended with that parent, so they serve nobody, but they hold their data directories and
ports. The new parent ends them. A process is one of them only if it wrote its process id and its start time into the
lock file of a data directory of this cluster, and still has it locked: no other process is ever signalled.
"""

from __future__ import annotations

import os
import select
import signal
import time
from contextlib import suppress

from kbroker.cli.common.errors import CliError
from kbroker.cli.common.locks import is_locked
from kbroker.cli.start.cluster.cluster_directory import broker_directory
from kbroker.runtime.event_log import EventLogger
from kbroker.runtime.real_disk import lock_owner
from kbroker.storage.file_names import LOCK

log = EventLogger("kbroker")

# A broker whose coordination service has ended takes about 10 s to stop cleanly; after this time it is killed.
STOP_S = 30.0
KILLED_S = 10.0
POLL_S = 0.05


def end_orphans(directory: str, brokers: int) -> None:
    """End the brokers of an earlier parent. The caller has locked `directory`, so there is no other parent.

    Raises CliError if the process that uses a data directory is not certainly one of them.
    """
    for node_id in range(1, brokers + 1):
        path = f"{broker_directory(directory, node_id)}/{LOCK}"
        if is_locked(path):
            _end(node_id, path)


def _end(node_id: int, path: str) -> None:
    if _stop_owner(node_id, path):
        # A child process of the broker has the lock, too, and ends just after it.
        deadline_s = time.monotonic() + KILLED_S
        while is_locked(path) and time.monotonic() < deadline_s:
            time.sleep(POLL_S)
    if is_locked(path):
        raise CliError(
            f"{os.path.dirname(path)} is in use by a process that is not known to be a broker of this cluster: end it, "
            "then start again"
        )


def _stop_owner(node_id: int, path: str) -> bool:
    """Stop the process that has locked the file, if it is certainly a broker. Returns whether it is."""
    owner = lock_owner(path)
    if owner is None:
        return False
    try:
        descriptor = os.pidfd_open(owner[0])
    except ProcessLookupError:
        return True
    try:
        # Checked once a descriptor refers to the process, which it cannot do to a later one with the same id.
        if lock_owner(path) != owner or not _has_locked(owner[0], path):
            return False
        log.warning("ending a broker of an earlier parent", broker=node_id, pid=owner[0])
        _stop(descriptor, node_id)
        return True
    finally:
        os.close(descriptor)


def _stop(descriptor: int, node_id: int) -> None:
    """Stop a process, with SIGKILL if it does not end in time."""
    ended = select.poll()
    ended.register(descriptor, select.POLLIN)
    for number, max_s in ((signal.SIGTERM, STOP_S), (signal.SIGKILL, KILLED_S)):
        signal.pidfd_send_signal(descriptor, number)
        if number is signal.SIGTERM:
            # It may have been stopped, and cannot end then.
            signal.pidfd_send_signal(descriptor, signal.SIGCONT)
        if ended.poll(max_s * 1000):
            return
        log.error("a broker of an earlier parent does not end", broker=node_id, signal=number.name, waited_s=max_s)


def _has_locked(pid: int, path: str) -> bool:
    """Return whether a process has locked a file, by what the kernel says about its file descriptors."""
    with suppress(OSError):
        file = os.stat(path)
        for name in os.listdir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                if os.path.samestat(os.stat(f"/proc/{pid}/fd/{name}"), file):
                    with open(f"/proc/{pid}/fdinfo/{name}") as info:
                        if "FLOCK" in info.read():
                            return True
    return False
