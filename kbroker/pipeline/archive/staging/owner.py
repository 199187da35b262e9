"""Who is writing: the process behind a staging directory, and whether it is still there.

Each writer has a name of its own, which its staging directory and its data files bear: _staging/NAME/owner.json and
topic=T/date=D/NAME-NNNNN.parquet. The owner file is written before anything else and removed last.
"""

import json
import os
import re
import socket
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

STAGING = "_staging"
OWNER = "owner.json"
# A writer of another machine, which nobody can ask, counts as dead when its staging directory is older than this.
LONGEST_MS = 24 * 3600 * 1000

_WRITER = re.compile("[0-9a-f]{12}")
_DATA_NAME = re.compile(rf"({_WRITER.pattern})-\d{{5,}}\.parquet")


class Process(NamedTuple):
    """A process, told apart from a later one of the same number."""

    host: str
    boot: str  # of the machine; empty where the system has no such id
    pid: int
    start: str  # in the system's own units; empty where it is not to be had


class Staging(NamedTuple):
    """A staging directory."""

    alive: bool  # its writer may still go on
    keeps: tuple[str, ...]  # data files that no commit names any longer, left for those who still read them


def new_writer() -> str:
    """A name for a writer that nobody has had."""
    return uuid.uuid4().hex[:12]


def is_writer(name: str) -> bool:
    """Whether it is a name that new_writer gives."""
    return _WRITER.fullmatch(name) is not None


def data_name(writer: str, number: int) -> str:
    return f"{writer}-{number:05d}.parquet"


def writer_of(path: str) -> str | None:
    """The writer of a data file by its name; None for a file that no writer of ours named."""
    found = _DATA_NAME.fullmatch(path.rpartition("/")[2])
    return None if found is None else found[1]


def owner_path(writer: str) -> str:
    return f"{STAGING}/{writer}/{OWNER}"


def this_process() -> Process:
    pid = os.getpid()
    return Process(socket.gethostname(), _boot(), pid, _start(pid))


def encode(process: Process, keeps: Iterable[str] = ()) -> bytes:
    return json.dumps(process._asdict() | {"keeps": sorted(keeps)}).encode() + b"\n"


def staging(data: bytes, age_ms: int) -> Staging:
    """What an owner file says; nothing is known of the owner where it is damaged. `age_ms`: since the last file was
    written in the staging directory."""
    try:
        found: dict[str, Any] = json.loads(data)
        process = Process(str(found["host"]), str(found["boot"]), int(found["pid"]), str(found["start"]))
        return Staging(is_alive(process, age_ms), tuple(map(str, found["keeps"])))
    except (ValueError, KeyError, TypeError):
        return Staging(age_ms < LONGEST_MS, ())


def is_alive(process: Process, age_ms: int) -> bool:
    """Whether the process may still write. `age_ms`: since its owner file was written."""
    if process.host != socket.gethostname():
        return age_ms < LONGEST_MS
    if process.boot != _boot():
        return False
    try:
        os.kill(process.pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return process.start == _start(process.pid)


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _start(pid: int) -> str:
    """When the process began, in ticks since the machine did; the name before it may hold anything, even ")"."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in ("Z", "X") else fields[19]
