"""Commands that show, damage and fail files. A segment's files are named by its base offset alone: orders-0/3.log.

Paths are relative to the data directory.
"""

import posixpath
import re
from collections.abc import Callable
from fnmatch import fnmatchcase
from random import Random
from typing import cast

from kbroker.simulation.disk.device import Operation
from kbroker.simulation.disk.log_files import durable_end, read_batches
from kbroker.simulation.runtime.machine import DATA
from kbroker.storage.log.indexes import OffsetIndex, TimeIndex
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


@COMMANDS.add("ls")
@COMMANDS.add("ls <directory>")
def ls(play: Play, directory: str = "") -> str:
    """List the files of a directory with their sizes; by default, those of the data directory."""
    disk, path = play.machine.disk, posixpath.join(DATA, directory).rstrip("/")
    if not disk.isdir(path):
        return "no such directory"
    entries = []
    for name in sorted(disk.entries(path)):
        full = f"{path}/{name}"
        if name not in HIDDEN:
            entries.append(f"{shorten(name)}/" if disk.isdir(full) else f"{shorten(name)} {disk.size(full)}")
    return ", ".join(entries) or "empty"


@COMMANDS.add("dump <file>")
def dump(play: Play, file: str) -> str:
    """Show the entries of a file on one line."""
    disk, path = play.machine.disk, path_of(file)
    if not disk.exists(path):
        return "no such file"
    show = DUMPS.get(posixpath.splitext(path)[1], _checkpoint)
    return " / ".join(show(bytes(disk.data(path)))) or "nothing"


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
def synced(play: Play, partition: str) -> str:
    """Show the first offset that a power loss now would lose."""
    return f"synced to {durable_end(play.machine.disk, f'{DATA}/{partition}')}"


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
def cut_by(play: Play, file: str, count: str) -> None:
    _replace(play, file, _data(play, file)[: -int(count)])


@COMMANDS.add("append <count> zeros to <file>")
def append_zeros(play: Play, count: str, file: str) -> None:
    _replace(play, file, _data(play, file) + bytes(int(count)))


@COMMANDS.add("append <count> bytes of garbage to <file>")
def append_garbage(play: Play, count: str, file: str) -> None:
    _replace(play, file, _data(play, file) + Random(file).randbytes(int(count)))


@COMMANDS.add("zero the last <count> bytes of <file>")
def zero_end(play: Play, count: str, file: str) -> None:
    _replace(play, file, _data(play, file)[: -int(count)] + bytes(int(count)))


@COMMANDS.add("flip a bit of batch <offset> in <file>")
def flip(play: Play, offset: str, file: str) -> str | None:
    """Flip a bit in the first byte of the batch's records."""
    data = bytearray(_data(play, file))
    start = next((batch.start for batch in read_batches(data) if batch.header.base_offset == int(offset)), None)
    if start is None:
        return "no such batch"
    data[start + HEADER_SIZE] ^= 1
    _replace(play, file, bytes(data))


@COMMANDS.add("stop checking invariants")
def stop_checking(play: Play) -> None:
    """Stop checking, because the broker cannot detect the damage that follows."""
    play.checks_invariants = False


@COMMANDS.add("fill <file> with garbage")
def fill(play: Play, file: str) -> None:
    """Replace the content. The size does not change."""
    _replace(play, file, Random(file).randbytes(len(_data(play, file))))


@COMMANDS.add("empty <file>")
def empty(play: Play, file: str) -> None:
    _replace(play, file, b"")


@COMMANDS.add("copy <file> to <other>")
def copy(play: Play, file: str, other: str) -> None:
    _replace(play, other, _data(play, file))


@COMMANDS.add("rm <file>")
def remove(play: Play, file: str) -> None:
    play.machine.disk.unlink(path_of(file))


# Disk faults.


@COMMANDS.add("disk full")
def full(play: Play) -> None:
    """Fill the disk: no further byte fits."""
    nearly_full(play, "0")


@COMMANDS.add("disk full except <count> bytes")
def nearly_full(play: Play, count: str) -> None:
    play.machine.disk.capacity = play.machine.disk.used + int(count)


@COMMANDS.add("disk has space")
def space(play: Play) -> None:
    play.machine.disk.capacity = None


@COMMANDS.add("disk <state>")
def mount(play: Play, state: str) -> None:
    """Make the file system `read-only` or `writable`. On a read-only one all changes and syncs fail, as on ext4 with
    errors=remount-ro after an error."""
    play.machine.disk.read_only = {"read-only": True, "writable": False}[state]


@COMMANDS.add("no file descriptors")
def no_descriptors(play: Play) -> None:
    """Let every open fail with EMFILE."""
    play.machine.disk.faults.open = 1.0


@COMMANDS.add("file descriptors available")
def descriptors(play: Play) -> None:
    play.machine.disk.faults.open = 0.0


@COMMANDS.add("syncs take <time>")
def slow_syncs(play: Play, time: str) -> None:
    """Make syncs slower: the time is added to the usual one."""
    play.machine.disk.faults.slow_sync_ns = round(1e9 * seconds(time))


@COMMANDS.add("page cache <state>")
def page_cache(play: Play, state: str) -> None:
    """Set the page cache to `warm`, so that all reads hit it, or to `cold`, so that none does."""
    play.machine.disk.cold = {"warm": 0.0, "cold": 1.0}[state]


@COMMANDS.add("next <operation> of <file> fails")
def fail_next(play: Play, operation: str, file: str) -> None:
    """Let the next operation (read, write or sync) on a file fail. The file may contain a `*`."""
    pattern = path_of(file)
    play.machine.disk.faults.fail_next(cast("Operation", operation), lambda path: fnmatchcase(path, pattern))
