"""Looking at indexes and producer snapshots without trusting them: entries as they are, and what is wrong with them."""

from collections.abc import Iterator
from struct import Struct
from typing import NamedTuple

from kbroker.runtime.disk import DiskFile
from kbroker.storage.inspect.batches import Damage
from kbroker.storage.producers.snapshot import SnapshotEntry, decode_damaged_snapshot, decode_snapshot

OFFSET_ENTRY = Struct(">ii")
TIME_ENTRY = Struct(">qi")
# Version, producer id, first offset, last offset, last stable offset of an aborted transaction (KIP-98).
ABORTED_ENTRY = Struct(">hqqqq")

_ENTRIES_TOGETHER = 1 << 13
_FROM = ", as a power failure leaves them, or an Apache Kafka that runs"


class IndexEntry(NamedTuple):
    """An entry of an index at a byte of its file; `values` as its Struct has them, `fault` is what is wrong."""

    at: int
    values: tuple[int, ...]
    fault: str | None = None


def offset_entries(file: DiskFile, end: int) -> Iterator[IndexEntry | Damage]:
    """(last offset of a batch relative to the segment's base, its position)."""
    return _ascending(file, end, OFFSET_ENTRY)


def time_entries(file: DiskFile, end: int) -> Iterator[IndexEntry | Damage]:
    """(timestamp in ms, offset relative to the segment's base)."""
    return _ascending(file, end, TIME_ENTRY)


def aborted_entries(file: DiskFile, end: int) -> Iterator[IndexEntry | Damage]:
    """(version, producer id, first offset, last offset, last stable offset)."""
    for entry in _entries(file, end, ABORTED_ENTRY):
        if isinstance(entry, IndexEntry) and entry.values[0] != 0:
            entry = entry._replace(fault=f"unknown version {entry.values[0]}")
        yield entry


def _ascending(file: DiskFile, end: int, struct: Struct) -> Iterator[IndexEntry | Damage]:
    """Entries of which both values must ascend. Apache Kafka makes the file of an index larger than it is, and cuts it
    when the segment is closed; a power loss leaves zeros as well."""
    previous = (-1, -1)
    padding: int | None = None
    for entry in _entries(file, end, struct):
        if isinstance(entry, IndexEntry):
            if entry.values == (0, 0) and (end > struct.size or struct is OFFSET_ENTRY):
                padding = _padding(file, end - end % struct.size, struct.size) if padding is None else padding
                if entry.at >= padding:
                    count = (end - entry.at) // struct.size
                    yield Damage(entry.at, end - entry.at, None, f"{count} entries of zeros{_FROM}")
                    return
            if min(entry.values) < 0:
                entry = entry._replace(fault="an entry is negative")
            elif entry.values[0] <= previous[0] or entry.values[1] <= previous[1]:
                entry = entry._replace(fault="the entries do not ascend")
            else:
                previous = entry.values[0], entry.values[1]
        yield entry


def _entries(file: DiskFile, end: int, struct: Struct) -> Iterator[IndexEntry | Damage]:
    whole = end - end % struct.size
    at = 0
    while at < whole:
        data = file.pread(min(_ENTRIES_TOGETHER * struct.size, whole - at), at)
        data = data[: len(data) - len(data) % struct.size]
        if not data:
            return
        for values in struct.iter_unpack(data):
            yield IndexEntry(at, values)
            at += struct.size
    if whole < end:
        yield Damage(whole, end - whole, None, f"{end - whole} bytes are less than an entry of {struct.size}")


def _padding(file: DiskFile, end: int, width: int) -> int:
    """Where the entry begins from which on all is zeros."""
    while end > 0:
        size = min(_ENTRIES_TOGETHER, end)
        data = file.pread(size, end - size).rstrip(b"\0")
        if data:
            return -(-(end - size + len(data)) // width) * width
        end -= size
    return 0


def producer_entries(data: bytes) -> tuple[list[SnapshotEntry], str | None]:
    """What can be read of a producer snapshot, and what is wrong with it."""
    try:
        return list(decode_snapshot(data)), None
    except ValueError as error:
        return list(decode_damaged_snapshot(data)), str(error)
