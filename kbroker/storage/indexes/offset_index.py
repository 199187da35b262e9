"""The offset index of a segment, `.index` in Kafka's format.

An entry has 8 bytes, big-endian: the last offset of a batch relative to the segment's base offset, and the position at
which that batch begins. Both ascend.

A closed segment's index stays on disk and is searched there. It is not mapped into memory: a page fault inside the
interpreter would block the event loop, whereas a non-blocking read fails and is repeated in a thread.
"""

from array import array
from bisect import bisect_right
from collections.abc import Callable

from kbroker.storage.indexes.index_file import BLOCK_ENTRIES, Read, is_ascending, read_exactly, sample, to_big_endian

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
