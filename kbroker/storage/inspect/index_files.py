"""Reads indexes and producer snapshots without trusting them: their entries, and their faults."""

from collections.abc import Iterator
from struct import Struct
from typing import NamedTuple

from kbroker.runtime.disk import DiskFile
from kbroker.storage.inspect.batches import Damage
from kbroker.storage.producers.snapshot import SnapshotEntry, decode_damaged_snapshot, decode_snapshot

OFFSET_ENTRY = Struct(">ii")
TIME_ENTRY = Struct(">qi")
# Version, producer id, first offset, last offset, last stable offset of an aborted transaction (KIP-98).
TRANSACTION_ENTRY = Struct(">hqqqq")

_ENTRIES_PER_READ = 1 << 13
_CAUSE_OF_ZEROS = ", as a power failure leaves them, or an Apache Kafka that runs"


class IndexEntry(NamedTuple):
    """An entry at byte `position` of an index. `values` are those of its Struct, `fault` is what is wrong with it."""

    position: int
    values: tuple[int, ...]
    fault: str | None = None


def iter_offset_entries(file: DiskFile, end: int) -> Iterator[IndexEntry | Damage]:
    """Yield entries with the last offset of a batch, relative to the segment's base offset, and its position."""
    return _iter_ascending(file, end, OFFSET_ENTRY)


def iter_time_entries(file: DiskFile, end: int) -> Iterator[IndexEntry | Damage]:
    """Yield entries with a timestamp in milliseconds, and an offset relative to the segment's base offset."""
    return _iter_ascending(file, end, TIME_ENTRY)


def iter_transaction_entries(file: DiskFile, end: int) -> Iterator[IndexEntry | Damage]:
    """Yield entries with version, producer id, first offset, last offset, last stable offset."""
    for entry in _iter_entries(file, end, TRANSACTION_ENTRY):
        if isinstance(entry, IndexEntry) and entry.values[0] != 0:
            entry = entry._replace(fault=f"unknown version {entry.values[0]}")
        yield entry


def _iter_ascending(file: DiskFile, end: int, struct: Struct) -> Iterator[IndexEntry | Damage]:
    """Yield entries whose two values must both ascend.

    Zeros at the end are padding: Apache Kafka allocates an index file larger than its content and truncates it when the
    segment is closed. A power loss leaves zeros, too.
    """
    previous = (-1, -1)
    padding_start: int | None = None
    for entry in _iter_entries(file, end, struct):
        if isinstance(entry, IndexEntry):
            if entry.values == (0, 0) and (end > struct.size or struct is OFFSET_ENTRY):
                if padding_start is None:
                    padding_start = _find_padding(file, end - end % struct.size, struct.size)
                if entry.position >= padding_start:
                    size = end - entry.position
                    yield Damage(entry.position, size, None, f"{size // struct.size} entries of zeros{_CAUSE_OF_ZEROS}")
                    return
            if min(entry.values) < 0:
                entry = entry._replace(fault="an entry is negative")
            elif entry.values[0] <= previous[0] or entry.values[1] <= previous[1]:
                entry = entry._replace(fault="the entries do not ascend")
            else:
                previous = entry.values[0], entry.values[1]
        yield entry


def _iter_entries(file: DiskFile, end: int, struct: Struct) -> Iterator[IndexEntry | Damage]:
    entries_end = end - end % struct.size
    position = 0
    while position < entries_end:
        data = file.pread(min(_ENTRIES_PER_READ * struct.size, entries_end - position), position)
        data = data[: len(data) - len(data) % struct.size]
        if not data:
            return
        for values in struct.iter_unpack(data):
            yield IndexEntry(position, values)
            position += struct.size
    if entries_end < end:
        remaining = end - entries_end
        yield Damage(entries_end, remaining, None, f"{remaining} bytes are less than an entry of {struct.size}")


def _find_padding(file: DiskFile, end: int, width: int) -> int:
    """Return the position of the entry from which on everything is zero."""
    while end > 0:
        size = min(_ENTRIES_PER_READ, end)
        data = file.pread(size, end - size).rstrip(b"\0")
        if data:
            return -(-(end - size + len(data)) // width) * width
        end -= size
    return 0


def decode_producer_entries(data: bytes) -> tuple[list[SnapshotEntry], str | None]:
    """Return the readable entries of a producer snapshot, and its faults."""
    try:
        return list(decode_snapshot(data)[0]), None
    except ValueError as error:
        return list(decode_damaged_snapshot(data)), str(error)
