"""The owner file of a staging directory: which process is writing, and whether it is still alive.

The owner file is written before anything else in the staging directory and deleted last.
"""

import json
import os
import socket
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

# A writer on another host counts as dead when nothing was written to its staging directory for this long.
REMOTE_TIMEOUT_MS = 24 * 3600 * 1000


class Process(NamedTuple):
    """A process, distinguishable from a later one with the same pid."""

    host: str
    boot: str  # id of the host's boot; empty if the system has none
    pid: int
    start: str  # start time in the system's own unit; empty if it is unknown


class StagingStatus(NamedTuple):
    """The status of a staging directory."""

    is_alive: bool  # its writer may still be running
    kept_files: tuple[str, ...]  # removed data files that running readers may still need


def new_writer_id() -> str:
    """Return a unique id; see layout.is_writer_id."""
    return uuid.uuid4().hex[:12]


def this_process() -> Process:
    pid = os.getpid()
    return Process(socket.gethostname(), _boot_id(), pid, _start_time(pid))


def encode(process: Process, kept_files: Iterable[str] = ()) -> bytes:
    return json.dumps(process._asdict() | {"keeps": sorted(kept_files)}).encode() + b"\n"


def decode(data: bytes, age_ms: int) -> StagingStatus:
    """Return the status that an owner file describes.

    `age_ms` is the time since the last write in the staging directory. It alone decides if the owner file is damaged.
    """
    try:
        owner = json.loads(data)
        process = Process(str(owner["host"]), str(owner["boot"]), int(owner["pid"]), str(owner["start"]))
        return StagingStatus(is_alive(process, age_ms), tuple(map(str, owner["keeps"])))
    except (ValueError, KeyError, TypeError):
        return StagingStatus(age_ms < REMOTE_TIMEOUT_MS, ())


def is_alive(process: Process, age_ms: int) -> bool:
    """Return whether the process may still write; `age_ms` is the time since its last write."""
    if process.host != socket.gethostname():
        return age_ms < REMOTE_TIMEOUT_MS
    if process.boot != _boot_id():
        return False
    try:
        os.kill(process.pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return process.start == _start_time(process.pid)


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _start_time(pid: int) -> str:
    """Return the start time in clock ticks since boot; empty for a process that has ended."""
    try:
        # The command name before the last ")" may itself contain ")".
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in ("Z", "X") else fields[19]
