"""The index of a segment's aborted transactions, `.txnindex` in Kafka's format (KIP-98).

An entry stands in the segment that holds the marker: version, producer id, first offset, last offset (the marker's),
and the last stable offset when it was appended. Last offsets ascend, and so do last stable ones: a reader looks for the
first entry that ends where it begins, and stops where all that it reads was stable. There is no file as long as
there is no entry.
"""

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from struct import Struct
from typing import NamedTuple

from kbroker.runtime.disk import Disk
from kbroker.storage.indexes.segment_indexes import Read, WouldBlock

ABORTED_ENTRY = 34

_VERSION = 0
_ENTRY = Struct(">hqqqq")
_WIDTH = 4
_BLOCK = 64
_CHUNK = 1 << 12


class AbortedTransaction(NamedTuple):
    """Offsets are inclusive, but for the last stable one. `last_offset` is that of the marker."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


def encode_aborted(entries: Iterable[AbortedTransaction]) -> bytes:
    return b"".join([_ENTRY.pack(_VERSION, *entry) for entry in entries])


def decode_aborted(data: bytes) -> Iterator[AbortedTransaction]:
    """Raises ValueError for what is no entry, or does not follow the one before."""
    if len(data) % ABORTED_ENTRY:
        raise ValueError("its size is not a multiple of 34")
    previous = -1
    for version, *values in _ENTRY.iter_unpack(data):
        entry = AbortedTransaction(*values)
        if version != _VERSION:
            raise ValueError(f"an entry of version {version}")
        if entry.producer_id < 0 or not 0 <= entry.first_offset <= entry.last_offset or entry.last_offset <= previous:
            raise ValueError("its entries do not ascend")
        if not 0 <= entry.last_stable_offset <= entry.last_offset + 1:
            raise ValueError("a last stable offset is beyond its marker")
        previous = entry.last_offset
        yield entry


class TransactionIndex:
    """Of one segment: so many entries in the file, and those in memory that the file does not hold yet.

    A thread may look things up while the loop adds: it takes both parts at once, and the second one only grows.
    """

    __slots__ = ("_parts", "last_offset")

    def __init__(self, persisted: int = 0, last_offset: int = -1) -> None:
        # Each entry is four numbers of the array: they take a tenth of what tuples would.
        self._parts: tuple[int, array[int]] = (persisted, array("q"))
        # Of the last entry.
        self.last_offset = last_offset

    def __len__(self) -> int:
        persisted, tail = self._parts
        return persisted + len(tail) // _WIDTH

    @property
    def persisted(self) -> int:
        return self._parts[0]

    @property
    def unwritten(self) -> bool:
        return bool(self._parts[1])

    def add(self, entry: AbortedTransaction) -> None:
        self._parts[1].extend(entry)
        self.last_offset = entry.last_offset

    def encode_tail(self) -> bytes:
        """The entries that the file does not hold, as it would."""
        return encode_aborted(_entries(self._parts[1]))

    def written(self, count: int) -> None:
        """The file holds so many entries now, of which some were in memory."""
        persisted, tail = self._parts
        if count > persisted:
            self._parts = (count, tail[(count - persisted) * _WIDTH :])

    def collect(self, read: Read, offset: int, upper: int, found: list[AbortedTransaction]) -> bool:
        """Add to `found` what was aborted in [offset, upper); True if no later segment can have more.

        `read` is of the file. Raises WouldBlock, ValueError if the file is too short.
        """
        if offset > self.last_offset:
            return False
        persisted, tail = self._parts
        slot = _first(read, persisted, offset)
        while slot < persisted:
            count = min(_BLOCK, persisted - slot)
            for entry in _read(read, slot, count):
                if entry.first_offset < upper:
                    found.append(entry)
                if entry.last_stable_offset >= upper:
                    return True
            slot += count
        count = len(tail) // _WIDTH
        slot = bisect_left(range(count), offset, key=lambda at: tail[at * _WIDTH + 2])
        for at in range(slot, count):
            entry = AbortedTransaction(*tail[at * _WIDTH : (at + 1) * _WIDTH])
            if entry.first_offset < upper:
                found.append(entry)
            if entry.last_stable_offset >= upper:
                return True
        return False


def _entries(tail: "array[int]") -> Iterator[AbortedTransaction]:
    for at in range(0, len(tail), _WIDTH):
        yield AbortedTransaction(*tail[at : at + _WIDTH])


def _first(read: Read, count: int, offset: int) -> int:
    """The first of the file's entries whose marker is not before `offset`."""
    low, high = 0, count
    while low < high:
        middle = (low + high) // 2
        if _read(read, middle, 1)[0].last_offset < offset:
            low = middle + 1
        else:
            high = middle
    return low


def _read(read: Read, slot: int, count: int) -> list[AbortedTransaction]:
    data = read(count * ABORTED_ENTRY, slot * ABORTED_ENTRY)
    if data is None:
        raise WouldBlock
    if len(data) != count * ABORTED_ENTRY:
        raise ValueError("the index of aborted transactions ends early")
    return [AbortedTransaction(*entry[1:]) for entry in _ENTRY.iter_unpack(data)]


def load_aborted(disk: Disk, path: str, base_offset: int, end_offset: int) -> TransactionIndex:
    """From a segment's file, all of whose entries are looked at. Raises ValueError if it cannot be right."""
    count, last = 0, base_offset - 1
    for entry in iter_aborted(disk, path):
        if not last < entry.last_offset < end_offset:
            raise ValueError(f"a marker at offset {entry.last_offset}")
        last = entry.last_offset
        count += 1
    return TransactionIndex(count, last)


def iter_aborted(disk: Disk, path: str) -> Iterator[AbortedTransaction]:
    """All entries of a file, a part at a time. Raises ValueError as `decode_aborted`."""
    file = disk.open(path, write=False)
    try:
        size = file.size()
        previous = -1
        for at in range(0, size, _CHUNK * ABORTED_ENTRY):
            for entry in decode_aborted(file.pread(min(_CHUNK * ABORTED_ENTRY, size - at), at)):
                if entry.last_offset <= previous:
                    raise ValueError("its entries do not ascend")
                previous = entry.last_offset
                yield entry
    finally:
        file.close()
