"""The offset index and the time index of a segment: their entries in memory, and searches in their files.

An entry of the offset index, `.index` in Kafka's format, has 8 bytes, big-endian: the last offset of a batch relative
to the segment's base offset, and the position at which that batch begins. One of the time index, `.timeindex`, has 12:
the largest timestamp so far, and the relative offset of the last record of the batch that has it. All of these ascend.

The indexes of a closed segment stay on disk and are searched there. They are not mapped into memory: a page fault in
the interpreter would block the event loop, whereas a non-blocking read fails and is repeated in a thread.
"""

import sys
from array import array
from bisect import bisect_right
from collections.abc import Callable
from errno import ENOSPC
from struct import Struct

from kbroker.common import Buffer
from kbroker.runtime.disk import Disk

# (size, position) -> bytes: a file's `pread`, or its `pread_nowait`, which returns None when it would block.
Read = Callable[[int, int], Buffer | None]

# The number of entries that are read or checked together.
BLOCK_ENTRIES = 512
# In indexes that are too long to check all entries, one entry per disk sector is checked.
_ENTRIES_PER_SECTOR = 64


class WouldBlock(Exception):
    """A read without waiting did not find the data in memory."""


def read_exactly(read: Read, size: int, position: int) -> Buffer:
    """Read exactly `size` bytes. Raises WouldBlock, or ValueError if the file is too short."""
    data = read(size, position)
    if data is None:
        raise WouldBlock
    if len(data) != size:
        raise ValueError("the index ends early")
    return data


def extend_index_file(disk: Disk, path: str, size: int, data_from: Callable[[int], bytes], *, sync: bool) -> None:
    """Write the content after the first `size` bytes of the file, or all content if the file has lost some of these.

    `data_from` returns the content from a byte on. Raises OSError; if the disk is full, the file is truncated again.
    """
    file = disk.open(path, create=True)
    try:
        found = file.size()
        start = size if found >= size else 0
        if found != start:
            file.truncate(start)
        data = data_from(start)
        if data and file.append(data) != len(data):
            file.truncate(start)
            raise OSError(ENOSPC, "no space left for an index")
        if sync and data:
            file.fdatasync()
    finally:
        file.close()


def to_big_endian(values: "array[int]") -> "array[int]":
    """Convert an array to the byte order of the files, or back, in place."""
    if sys.byteorder == "little":
        values.byteswap()
    return values


def sample(values: "array[int]") -> "array[int]":
    """Return the entries to check: all of a short index; of a long one an entry per disk sector, and the last ones.

    A power loss leaves whole sectors of zeros. Other damage is noticed when an entry is used, since it must match the
    log.
    """
    if len(values) <= BLOCK_ENTRIES:
        return values
    return values[:-BLOCK_ENTRIES:_ENTRIES_PER_SECTOR] + values[-BLOCK_ENTRIES:]


def is_ascending(values: "array[int] | list[int]") -> bool:
    """Return whether each value is larger than the one before."""
    return all(map(int.__lt__, values, values[1:]))


OFFSET_ENTRY_BYTES = 8

_POSITION_MASK = 0xFFFFFFFF


def position_of(entry: int) -> int:
    """Return the position in the log file at which the entry's batch begins."""
    return entry & _POSITION_MASK


def relative_offset_of(entry: int) -> int:
    """Return the last offset of the entry's batch, relative to the segment's base offset."""
    return entry >> 32


# The entries of an index without any, and those of a cache that was not used. They are not changed.
_NO_ENTRIES = array("q")
_NO_BLOCK = (0, _NO_ENTRIES)


class OffsetIndex:
    """Entries in memory, each an integer: relative offset << 32 | position, so entries sort by offset.

    The file contains the first `persisted` entries.
    """

    __slots__ = ("entries", "persisted")

    def __init__(self, entries: "array[int] | None" = None, persisted: int = 0) -> None:
        self.entries = _NO_ENTRIES if entries is None else entries
        self.persisted = persisted

    @classmethod
    def decode(cls, data: bytes) -> "OffsetIndex":
        """Read a file's content; raises ValueError if it cannot be an offset index."""
        if len(data) % OFFSET_ENTRY_BYTES:
            raise ValueError("its size is not a multiple of 8")
        if not data:
            return cls()
        entries = _decode(data)
        checked = sample(entries)
        if not is_ascending(checked) or not is_ascending([position_of(entry) for entry in checked]):
            raise ValueError("its entries do not ascend")
        if entries and entries[0] < 0:
            raise ValueError("an offset is negative")
        return cls(entries, len(entries))

    def encode(self, start: int, end: int) -> bytes:
        """Encode the entries [start, end) in the format of the file."""
        return to_big_endian(self.entries[start:end]).tobytes()

    def add(self, relative_offset: int, position: int) -> None:
        if self.entries is _NO_ENTRIES:
            self.entries = array("q")
        self.entries.append(relative_offset << 32 | position)

    def at_offset(self, relative_offset: int) -> int | None:
        """Return the last entry whose offset is at most `relative_offset`; None if there is none."""
        entries = self.entries
        slot = bisect_right(entries, relative_offset << 32 | _POSITION_MASK)
        return entries[slot - 1] if slot else None

    def at_position(self, position: int) -> int | None:
        """Return the last entry whose position is at most `position`; None if there is none."""
        entries = self.entries
        slot = bisect_right(entries, position, key=position_of)
        return entries[slot - 1] if slot else None

    def truncate(self, count: int) -> None:
        """Keep the first `count` entries. The array is replaced, since a thread may be reading it."""
        self.entries = self.entries[:count]
        self.persisted = min(self.persisted, count)


class BlockCache:
    """The entries of one file that were read last: a consumer that reads on needs the same ones, or those after them.

    `block`: number of the first entry, and the entries. It is replaced in one step, since threads use it, too.
    """

    __slots__ = ("block",)

    def __init__(self) -> None:
        self.block: tuple[int, array[int]] = _NO_BLOCK


def find_entry(read: Read, count: int, relative_offset: int, cache: BlockCache | None = None) -> int | None:
    """Like `OffsetIndex.at_offset`, on a file of `count` entries. Raises WouldBlock, ValueError for a shorter file."""
    return _find(read, count, relative_offset << 32 | _POSITION_MASK, int, cache or BlockCache())


def find_entry_by_position(read: Read, count: int, position: int, cache: BlockCache | None = None) -> int | None:
    """Like `OffsetIndex.at_position`, on a file of `count` entries. Raises WouldBlock, ValueError."""
    return _find(read, count, position, position_of, cache or BlockCache())


def _find(read: Read, count: int, key: int, key_of: Callable[[int], int], cache: BlockCache) -> int | None:
    """Return the last entry whose key is at most `key`: bisect entry by entry, then within one block."""
    low, high = 0, count
    first, entries = cache.block
    if entries and key_of(entries[0]) <= key:
        end = first + len(entries)
        if key < key_of(entries[-1]) or end == count:
            return entries[bisect_right(entries, key, key=key_of) - 1]
        # The next block is tried first.
        low = end - 1
        if low + BLOCK_ENTRIES < count:
            if key < key_of(_read_entries(read, low + BLOCK_ENTRIES, 1)[0]):
                high = low + BLOCK_ENTRIES
            else:
                low += BLOCK_ENTRIES
    while high - low > BLOCK_ENTRIES:
        middle = (low + high) // 2
        if key_of(_read_entries(read, middle, 1)[0]) <= key:
            low = middle
        else:
            high = middle
    entries = _read_entries(read, low, high - low)
    cache.block = low, entries
    slot = bisect_right(entries, key, key=key_of)
    return entries[slot - 1] if slot else None


def _read_entries(read: Read, start: int, count: int) -> "array[int]":
    return _decode(read_exactly(read, count * OFFSET_ENTRY_BYTES, start * OFFSET_ENTRY_BYTES))


def _decode(data: "bytes | bytearray | memoryview") -> "array[int]":
    entries = array("q")
    entries.frombytes(data)
    return to_big_endian(entries)


TIME_ENTRY_BYTES = 12
NO_TIMESTAMP = -1

_ENTRY = Struct(">qi")
# The index of the high half of a 64-bit number in its two 32-bit words.
_HIGH_HALF = 1 if sys.byteorder == "little" else 0


# The entries of an index without any. They are not changed.
_NO_TIMESTAMPS, _NO_OFFSETS = array("q"), array("i")


class TimeIndex:
    """Entries in memory. The file contains the first `persisted` entries."""

    __slots__ = ("offsets", "persisted", "timestamps")

    def __init__(self) -> None:
        self.timestamps = _NO_TIMESTAMPS
        self.offsets = _NO_OFFSETS
        self.persisted = 0

    @classmethod
    def decode(cls, data: bytes) -> "TimeIndex":
        """Read a file's content; raises ValueError if it cannot be a time index."""
        if len(data) % TIME_ENTRY_BYTES:
            raise ValueError("its size is not a multiple of 12")
        if not data:
            return cls()
        # Decoded as 32-bit words, three per entry: a loop over the entries would take many times as long.
        words = array("i")
        words.frombytes(data)
        to_big_endian(words)
        index = cls()
        index.offsets = words[2::3]
        halves = array("i", bytes(len(index.offsets) * 8))
        halves[_HIGH_HALF::2], halves[1 - _HIGH_HALF :: 2] = words[0::3], words[1::3]
        index.timestamps = array("q", halves.tobytes())
        if not is_ascending(sample(index.timestamps)) or not is_ascending(sample(index.offsets)):
            raise ValueError("its entries do not ascend")
        if index.timestamps and (index.timestamps[0] < 0 or index.offsets[0] < 0):
            raise ValueError("an entry is negative")
        index.persisted = len(index.timestamps)
        return index

    def encode(self, start: int, end: int) -> bytes:
        """Encode the entries [start, end) in the format of the file."""
        halves = array("i")
        halves.frombytes(self.timestamps[start:end].tobytes())
        words = array("i", bytes((end - start) * TIME_ENTRY_BYTES))
        words[0::3], words[1::3] = halves[_HIGH_HALF::2], halves[1 - _HIGH_HALF :: 2]
        words[2::3] = self.offsets[start:end]
        return to_big_endian(words).tobytes()

    def add(self, timestamp: int, relative_offset: int) -> None:
        """Add an entry if `timestamp` is larger than that of the last one."""
        timestamps = self.timestamps
        if timestamps is _NO_TIMESTAMPS:
            self.offsets = array("i")
            timestamps = self.timestamps = array("q")
        if timestamp > (timestamps[-1] if timestamps else NO_TIMESTAMP):
            # Threads read the timestamps first, so the offset must be added first.
            self.offsets.append(relative_offset)
            timestamps.append(timestamp)

    def last_before(self, timestamp: int) -> int:
        """Return the relative offset of the last entry that is earlier than `timestamp`; 0 if there is none."""
        slot = bisect_right(self.timestamps, timestamp - 1)
        return self.offsets[slot - 1] if slot else 0

    def truncate_to_offset(self, relative_offset: int) -> None:
        """Remove the entries of larger offsets. The arrays are replaced, since a thread may be reading them."""
        count = bisect_right(self.offsets, relative_offset)
        if count < len(self.offsets):
            self.timestamps, self.offsets = self.timestamps[:count], self.offsets[:count]
        self.persisted = min(self.persisted, count)


def find_last_before(read: Read, count: int, timestamp: int) -> int:
    """Like `TimeIndex.last_before`, on a file of `count` entries. Raises WouldBlock, ValueError for a shorter file."""
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
    """Return (timestamp, relative offset) of an entry of a file. Raises WouldBlock, ValueError."""
    timestamp, offset = _ENTRY.unpack(read_exactly(read, TIME_ENTRY_BYTES, slot * TIME_ENTRY_BYTES))
    return timestamp, offset
