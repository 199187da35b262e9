"""Commands that show, damage and fail files. A segment's files are named by its base offset alone: orders-0/3.log.

Paths are relative to the data directory.
"""

import posixpath
import re
from collections.abc import Callable
from fnmatch import fnmatchcase
from random import Random
from typing import cast

from kbroker.simulation.disk.faults import Operation
from kbroker.simulation.disk.log_files import durable_end, read_batches
from kbroker.simulation.runtime.machine import DATA
from kbroker.storage.indexes.offset_index import OffsetIndex
from kbroker.storage.indexes.time_index import TimeIndex
from kbroker.storage.producers.producer_state_manager import ProducerStateManager
from protocol.records.batch import HEADER_SIZE
from tests.unit.simulation.transcripts.play import Play, shorten
from tests.unit.simulation.transcripts.table import Table, seconds

COMMANDS = Table()
# Files that are always there, or contain random ids.
HIDDEN = ("partition.metadata", "meta.properties", ".lock", "coordination")


def path_of(file: str) -> str:
    """Return /data/orders-0/00000000000000000003.log for `orders-0/3.log`."""
    name = re.sub(r"(?<![^/])(\d+)(?=\.)", lambda match: match[1].zfill(20), file)
    return f"{DATA}/{name}"


# Show files.


@COMMANDS.add("ls <directory>")
async def ls(play: Play, directory: str) -> list[str]:
    """Files with their sizes."""
    return [_listing(play, f"{DATA}/{directory}")]


@COMMANDS.add("ls")
async def ls_all(play: Play) -> list[str]:
    """The data directory."""
    return [_listing(play, DATA)]


def _listing(play: Play, path: str) -> str:
    disk = play.machine.disk
    if not disk.isdir(path):
        return "no such directory"
    entries = []
    for name in sorted(disk.entries(path)):
        full = f"{path}/{name}"
        if name not in HIDDEN:
            entries.append(f"{shorten(name)}/" if disk.isdir(full) else f"{shorten(name)} {disk.size(full)}")
    return ", ".join(entries) or "empty"


@COMMANDS.add("dump <file>")
async def dump(play: Play, file: str) -> list[str]:
    """The entries of a file on one line."""
    disk, path = play.machine.disk, path_of(file)
    if not disk.exists(path):
        return ["no such file"]
    show = DUMPS.get(posixpath.splitext(path)[1], _checkpoint)
    return [" / ".join(show(bytes(disk.data(path)))) or "nothing"]


def _log(data: bytes) -> list[str]:
    return [
        f"{header.base_offset} to {header.last_offset}, epoch {header.leader_epoch}"
        for header, _, _ in read_batches(data)
    ]


def _snapshot(data: bytes) -> list[str]:
    return [
        f"producer {producer.producer_id}, epoch {producer.producer_epoch}, sequence {producer.last_sequence}"
        for producer in ProducerStateManager.from_snapshot(data).active()
    ]


def _index(data: bytes) -> list[str]:
    return [f"{entry >> 32} at {entry & 0xFFFFFFFF}" for entry in OffsetIndex.decode(data).entries]


def _times(data: bytes) -> list[str]:
    index = TimeIndex.decode(data)
    return [f"{offset}" for offset in index.offsets]


def _checkpoint(data: bytes) -> list[str]:
    return data.decode().splitlines()[2:]


DUMPS: dict[str, Callable[[bytes], list[str]]] = {
    ".log": _log,
    ".snapshot": _snapshot,
    ".index": _index,
    ".timeindex": _times,
}


@COMMANDS.add("synced <partition>")
async def synced(play: Play, partition: str) -> list[str]:
    """The first offset that a power loss now would lose."""
    return [f"synced to {durable_end(play.machine.disk, f'{DATA}/{partition}')}"]


# Damage.


def _replace(play: Play, file: str, data: bytes) -> None:
    """Change a file durably, unnoticed by the broker."""
    opened = play.machine.disk.open(path_of(file), create=True)
    opened.truncate(0)
    opened.append(data)
    opened.fdatasync()


def _data(play: Play, file: str) -> bytes:
    return bytes(play.machine.disk.data(path_of(file)))


@COMMANDS.add("cut <file> by <count> bytes")
async def cut_by(play: Play, file: str, count: str) -> list[str]:
    _replace(play, file, _data(play, file)[: -int(count)])
    return []


@COMMANDS.add("append <count> zeros to <file>")
async def append_zeros(play: Play, count: str, file: str) -> list[str]:
    _replace(play, file, _data(play, file) + bytes(int(count)))
    return []


@COMMANDS.add("append <count> bytes of garbage to <file>")
async def append_garbage(play: Play, count: str, file: str) -> list[str]:
    _replace(play, file, _data(play, file) + Random(file).randbytes(int(count)))
    return []


@COMMANDS.add("zero the last <count> bytes of <file>")
async def zero_end(play: Play, count: str, file: str) -> list[str]:
    _replace(play, file, _data(play, file)[: -int(count)] + bytes(int(count)))
    return []


@COMMANDS.add("flip a bit of batch <offset> in <file>")
async def flip(play: Play, offset: str, file: str) -> list[str]:
    """A bit in the first byte of its records."""
    data = bytearray(_data(play, file))
    start = next((batch.start for batch in read_batches(data) if batch.header.base_offset == int(offset)), None)
    if start is None:
        return ["no such batch"]
    data[start + HEADER_SIZE] ^= 1
    _replace(play, file, bytes(data))
    return []


@COMMANDS.add("stop checking invariants")
async def stop_checking(play: Play) -> list[str]:
    """The broker cannot detect the damage that follows."""
    play.checks_invariants = False
    return []


@COMMANDS.add("fill <file> with garbage")
async def fill(play: Play, file: str) -> list[str]:
    """Its size stays."""
    _replace(play, file, Random(file).randbytes(len(_data(play, file))))
    return []


@COMMANDS.add("empty <file>")
async def empty(play: Play, file: str) -> list[str]:
    _replace(play, file, b"")
    return []


@COMMANDS.add("copy <file> to <other>")
async def copy(play: Play, file: str, other: str) -> list[str]:
    _replace(play, other, _data(play, file))
    return []


@COMMANDS.add("rm <file>")
async def remove(play: Play, file: str) -> list[str]:
    play.machine.disk.unlink(path_of(file))
    return []


# Disk faults.


@COMMANDS.add("disk full")
async def full(play: Play) -> list[str]:
    """No further byte fits."""
    play.machine.disk.capacity = play.machine.disk.used
    return []


@COMMANDS.add("disk full except <count> bytes")
async def nearly_full(play: Play, count: str) -> list[str]:
    play.machine.disk.capacity = play.machine.disk.used + int(count)
    return []


@COMMANDS.add("disk read-only")
async def read_only(play: Play) -> list[str]:
    """As ext4 with errors=remount-ro after an error: all changes and syncs fail."""
    play.machine.disk.read_only = True
    return []


@COMMANDS.add("disk writable")
async def writable(play: Play) -> list[str]:
    play.machine.disk.read_only = False
    return []


@COMMANDS.add("disk has space")
async def space(play: Play) -> list[str]:
    play.machine.disk.capacity = None
    return []


@COMMANDS.add("no file descriptors")
async def no_descriptors(play: Play) -> list[str]:
    """Opening files fails with EMFILE."""
    play.machine.disk.faults.open = 1.0
    return []


@COMMANDS.add("file descriptors available")
async def descriptors(play: Play) -> list[str]:
    play.machine.disk.faults.open = 0.0
    return []


@COMMANDS.add("syncs take <time>")
async def slow_syncs(play: Play, time: str) -> list[str]:
    """In addition to the usual time."""
    play.machine.disk.faults.slow_sync_ns = round(1e9 * seconds(time))
    return []


@COMMANDS.add("page cache <state>")
async def page_cache(play: Play, state: str) -> list[str]:
    """`warm`: all reads hit the page cache; `cold`: none does."""
    play.machine.disk.cold = {"warm": 0.0, "cold": 1.0}[state]
    return []


@COMMANDS.add("next <operation> of <file> fails")
async def fail_next(play: Play, operation: str, file: str) -> list[str]:
    """Operations: read, write, sync."""
    pattern = path_of(file)
    play.machine.disk.faults.fail_next(cast("Operation", operation), lambda path: fnmatchcase(path, pattern))
    return []
