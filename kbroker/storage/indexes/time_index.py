"""The time index of a segment, `.timeindex` in Kafka's format.

An entry has 12 bytes, big-endian: the largest timestamp so far, and the relative offset of the last record of the batch
that has it. Both ascend.
"""

import sys
from array import array
from bisect import bisect_right
from struct import Struct

from kbroker.storage.indexes.index_file import Read, is_ascending, read_exactly, sample, to_big_endian

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
