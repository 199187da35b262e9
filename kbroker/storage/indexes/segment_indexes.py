"""Offset and time index of a segment: in memory while the segment is written, on disk in Kafka's format.

Offset index: 8 bytes an entry, the last offset of a batch relative to the segment's base and the position where
that batch begins. Time index: 12 bytes an entry, the largest timestamp so far and the relative offset of the last
record of the batch that has it. Both big-endian, both ascending.

A closed segment's index stays on disk and is searched there. It is not mapped: a page fault inside the
interpreter would hold up the loop, where a read that may not wait gives up and is repeated in a thread.
"""

import sys
from array import array
from bisect import bisect_right
from collections.abc import Callable
from struct import Struct

from kbroker.common import Buffer

INDEX_ENTRY = 8
TIME_ENTRY = 12
NO_TIMESTAMP = -1

# Reads (size, offset); None: would have to wait. A file's pread or pread_nowait.
Read = Callable[[int, int], Buffer | None]

_TIME = Struct(">qi")
_LOW = 0xFFFFFFFF
# Up to this many entries are read at once; more are first narrowed down entry by entry.
_BLOCK = 512
_SECTOR = 64
_HIGH_HALF = 1 if sys.byteorder == "little" else 0


def _swapped(entries: "array[int]") -> "array[int]":
    if sys.byteorder == "little":
        entries.byteswap()
    return entries


def _position(entry: int) -> int:
    return entry & _LOW


class OffsetIndex:
    """Entries in memory, each one integer: relative offset << 32 | position, which is also how it sorts.

    `persisted`: how many of them the file holds already.
    """

    __slots__ = ("entries", "persisted")

    def __init__(self, entries: "array[int] | None" = None, persisted: int = 0) -> None:
        self.entries = array("q") if entries is None else entries
        self.persisted = persisted

    @classmethod
    def decode(cls, data: bytes) -> "OffsetIndex":
        """From a file's content; raises ValueError if it cannot be an index."""
        if len(data) % INDEX_ENTRY:
            raise ValueError("its size is not a multiple of 8")
        entries = array("q")
        entries.frombytes(data)
        _swapped(entries)
        sample = _sample(entries)
        if not _ascending(sample) or not _ascending([entry & _LOW for entry in sample]):
            raise ValueError("its entries do not ascend")
        if entries and entries[0] < 0:
            raise ValueError("an offset is negative")
        return cls(entries, len(entries))

    def encode(self, start: int, end: int) -> bytes:
        """Entries [start, end) as the file has them."""
        return _swapped(self.entries[start:end]).tobytes()

    def add(self, relative_offset: int, position: int) -> None:
        self.entries.append(relative_offset << 32 | position)

    def at_offset(self, relative_offset: int) -> int | None:
        """The last entry of an offset up to this one, None if there is none."""
        entries = self.entries
        slot = bisect_right(entries, relative_offset << 32 | _LOW)
        return entries[slot - 1] if slot else None

    def at_position(self, position: int) -> int | None:
        """The last entry of a position up to this one."""
        entries = self.entries
        slot = bisect_right(entries, position, key=_position)
        return entries[slot - 1] if slot else None

    def keep(self, count: int) -> None:
        """Drop all entries but the first `count`. The array is replaced: a thread may be reading it."""
        self.entries = self.entries[:count]
        self.persisted = min(self.persisted, count)


class WouldBlock(Exception):
    """A read that may not wait found nothing in memory."""


def find_entry(read: Read, count: int, relative_offset: int) -> int | None:
    """`OffsetIndex.at_offset` on a file of `count` entries. Raises WouldBlock, ValueError if it is too short."""
    return _find(read, count, relative_offset << 32 | _LOW, _itself)


def find_entry_by_position(read: Read, count: int, position: int) -> int | None:
    """`OffsetIndex.at_position` on a file of `count` entries. Raises as `find_entry`."""
    return _find(read, count, position, _position)


def _itself(entry: int) -> int:
    return entry


def _find(read: Read, count: int, wanted: int, key: Callable[[int], int]) -> int | None:
    low, high = 0, count
    while high - low > _BLOCK:
        middle = (low + high) // 2
        if key(_entries(read, middle, 1)[0]) <= wanted:
            low = middle
        else:
            high = middle
    entries = _entries(read, low, high - low)
    slot = bisect_right(entries, wanted, key=key)
    return entries[slot - 1] if slot else None


def _entries(read: Read, start: int, count: int) -> "array[int]":
    data = read(count * INDEX_ENTRY, start * INDEX_ENTRY)
    if data is None:
        raise WouldBlock
    if len(data) != count * INDEX_ENTRY:
        raise ValueError("the index ends early")
    entries = array("q")
    entries.frombytes(data)
    return _swapped(entries)


class TimeIndex:
    """Entries in memory. `persisted`: how many of them the file holds already."""

    __slots__ = ("offsets", "persisted", "timestamps")

    def __init__(self) -> None:
        self.timestamps = array("q")
        self.offsets = array("i")
        self.persisted = 0

    @classmethod
    def decode(cls, data: bytes) -> "TimeIndex":
        """From a file's content; raises ValueError if it cannot be a time index."""
        if len(data) % TIME_ENTRY:
            raise ValueError("its size is not a multiple of 12")
        # As 32-bit words, of which every third begins an entry: loops over the entries would take far longer.
        words = array("i")
        words.frombytes(data)
        _swapped(words)
        index = cls()
        index.offsets = words[2::3]
        halves = array("i", bytes(len(index.offsets) * 8))
        halves[_HIGH_HALF::2], halves[1 - _HIGH_HALF :: 2] = words[0::3], words[1::3]
        index.timestamps.frombytes(halves.tobytes())
        if not _ascending(_sample(index.timestamps)) or not _ascending(_sample(index.offsets)):
            raise ValueError("its entries do not ascend")
        if index.timestamps and (index.timestamps[0] < 0 or index.offsets[0] < 0):
            raise ValueError("an entry is negative")
        index.persisted = len(index.timestamps)
        return index

    def encode(self, start: int, end: int) -> bytes:
        """Entries [start, end) as the file has them."""
        halves = array("i")
        halves.frombytes(self.timestamps[start:end].tobytes())
        words = array("i", bytes((end - start) * TIME_ENTRY))
        words[0::3], words[1::3] = halves[_HIGH_HALF::2], halves[1 - _HIGH_HALF :: 2]
        words[2::3] = self.offsets[start:end]
        return _swapped(words).tobytes()

    def add(self, timestamp: int, relative_offset: int) -> None:
        """Note the largest timestamp so far, unless the last entry says it already."""
        timestamps = self.timestamps
        if timestamp > (timestamps[-1] if timestamps else NO_TIMESTAMP):
            # Threads look at the timestamps first: the offset must be there by then.
            self.offsets.append(relative_offset)
            timestamps.append(timestamp)

    def before(self, timestamp: int) -> int:
        """Relative offset of the last entry that is earlier than `timestamp`; 0 if there is none."""
        slot = bisect_right(self.timestamps, timestamp - 1)
        return self.offsets[slot - 1] if slot else 0

    def keep_offsets(self, relative_offset: int) -> None:
        """Drop the entries of offsets beyond this one."""
        count = bisect_right(self.offsets, relative_offset)
        self.timestamps, self.offsets = self.timestamps[:count], self.offsets[:count]
        self.persisted = min(self.persisted, count)


def find_time(read: Read, count: int, timestamp: int) -> int:
    """`TimeIndex.before` on a file of `count` entries. Raises as `find_entry`."""
    low, high = 0, count
    found = 0
    while low < high:
        middle = (low + high) // 2
        entry_timestamp, offset = read_time_entry(read, middle)
        if entry_timestamp < timestamp:
            low, found = middle + 1, offset
        else:
            high = middle
    return found


def read_time_entry(read: Read, slot: int) -> tuple[int, int]:
    """(timestamp, relative offset). Raises as `find_entry`."""
    data = read(TIME_ENTRY, slot * TIME_ENTRY)
    if data is None:
        raise WouldBlock
    if len(data) != TIME_ENTRY:
        raise ValueError("the time index ends early")
    timestamp, offset = _TIME.unpack(data)
    return timestamp, offset


def _sample(values: "array[int]") -> "array[int]":
    """Few are looked at whole. Of many one a sector is, and the last ones: a power loss leaves whole sectors of zeros
    behind. Other damage is noticed when an entry is used, for it must fit the log."""
    if len(values) <= _BLOCK:
        return values
    return values[:-_BLOCK:_SECTOR] + values[-_BLOCK:]


def _ascending(values: "array[int] | list[int]") -> bool:
    """Strictly."""
    return all(map(int.__lt__, values, values[1:]))
