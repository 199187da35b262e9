"""The index of a segment's aborted transactions, `.txnindex` in Kafka's format (KIP-98).

An entry is in the segment of the marker: version, producer id, first offset, last offset (the marker's), last stable
offset when the marker was appended. Last offsets ascend, and so do last stable offsets: a lookup begins at the first
entry whose last offset is not before the read, and ends where everything that was read was stable. A segment without
entries has no file.
"""

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from struct import Struct
from typing import NamedTuple

from kbroker.runtime.disk import Disk
from kbroker.storage.log.indexes import Read, read_exactly
from kbroker.storage.producers.producer_state_manager import ProducerStateManager
from protocol.records.batch import BatchHeader
from protocol.records.control import EndTransactionMarker

TRANSACTION_ENTRY_BYTES = 34

_VERSION = 0
_ENTRY = Struct(">hqqqq")
# The number of values per entry in memory, and the index of the last offset among them.
_WIDTH = 4
_LAST_OFFSET = 2
# Entries that are read together: in a lookup, and when the whole file is read.
_LOOKUP_ENTRIES = 64
_SCAN_ENTRIES = 1 << 12


class AbortedTransaction(NamedTuple):
    """`last_offset` is the marker's offset. The first and last offset are inclusive, the last stable offset is not."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


def encode_entries(entries: Iterable[AbortedTransaction]) -> bytes:
    return b"".join([_ENTRY.pack(_VERSION, *entry) for entry in entries])


def decode_entries(data: bytes) -> Iterator[AbortedTransaction]:
    """Decode entries. Raises ValueError for an entry that is not plausible or not in order."""
    if len(data) % TRANSACTION_ENTRY_BYTES:
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


# The entries of a segment without aborted transactions. They are not changed.
_NO_ENTRIES = (0, array("q"))


class TransactionIndex:
    """The index of one segment: the number of entries in the file, and the entries that are not in the file yet.

    A thread may look up entries while the event loop adds some: it reads both parts in one step, and the second one
    only grows.
    """

    __slots__ = ("_parts", "last_offset")

    def __init__(self, persisted: int = 0, last_offset: int = -1) -> None:
        # Four numbers per entry. An array needs a tenth of the memory of tuples.
        self._parts: tuple[int, array[int]] = (persisted, array("q")) if persisted else _NO_ENTRIES
        # The last offset of the last entry; -1 without entries.
        self.last_offset = last_offset

    def __len__(self) -> int:
        persisted, tail = self._parts
        return persisted + len(tail) // _WIDTH

    @property
    def persisted(self) -> int:
        """The number of entries in the file."""
        return self._parts[0]

    @property
    def has_unwritten(self) -> bool:
        return bool(self._parts[1])

    def add(self, entry: AbortedTransaction) -> None:
        if self._parts is _NO_ENTRIES:
            self._parts = (0, array("q"))
        self._parts[1].extend(entry)
        self.last_offset = entry.last_offset

    def encode_unwritten(self) -> bytes:
        """Encode the entries that are not in the file yet."""
        return encode_entries(_unpack_entries(self._parts[1]))

    def mark_written(self, count: int) -> None:
        """Record that the file contains the first `count` entries."""
        persisted, tail = self._parts
        if count > persisted:
            self._parts = (count, tail[(count - persisted) * _WIDTH :])

    def collect(self, read: Read, offset: int, upper: int, found: list[AbortedTransaction]) -> bool:
        """Add to `found` the transactions that overlap [offset, upper). Returns True if no later segment can have more.

        `read` reads the file. Raises WouldBlock, ValueError if the file is too short.
        """
        if offset > self.last_offset:
            return False
        persisted, tail = self._parts
        slot = _find_slot(read, persisted, offset)
        while slot < persisted:
            count = min(_LOOKUP_ENTRIES, persisted - slot)
            if _add_overlapping(_read_entries(read, slot, count), upper, found):
                return True
            slot += count
        count = len(tail) // _WIDTH
        slot = bisect_left(range(count), offset, key=lambda at: tail[at * _WIDTH + _LAST_OFFSET])
        return _add_overlapping(_unpack_entries(tail[slot * _WIDTH : count * _WIDTH]), upper, found)


def _add_overlapping(entries: Iterable[AbortedTransaction], upper: int, found: list[AbortedTransaction]) -> bool:
    """Add the entries that begin below `upper`. Returns True if no later entry can begin below it."""
    for entry in entries:
        if entry.first_offset < upper:
            found.append(entry)
        if entry.last_stable_offset >= upper:
            return True
    return False


def _unpack_entries(numbers: "array[int]") -> Iterator[AbortedTransaction]:
    for at in range(0, len(numbers), _WIDTH):
        yield AbortedTransaction(*numbers[at : at + _WIDTH])


def _find_slot(read: Read, count: int, offset: int) -> int:
    """Return the slot of the first entry in the file whose last offset is at least `offset`."""
    low, high = 0, count
    while low < high:
        middle = (low + high) // 2
        if _read_entries(read, middle, 1)[0].last_offset < offset:
            low = middle + 1
        else:
            high = middle
    return low


def _read_entries(read: Read, slot: int, count: int) -> list[AbortedTransaction]:
    data = read_exactly(read, count * TRANSACTION_ENTRY_BYTES, slot * TRANSACTION_ENTRY_BYTES)
    return [AbortedTransaction(*entry[1:]) for entry in _ENTRY.iter_unpack(data)]


def load_transaction_index(disk: Disk, path: str, base_offset: int, end_offset: int) -> TransactionIndex:
    """Open the index of the segment [base_offset, end_offset), checking all entries. Raises ValueError if it is
    damaged."""
    count, last = 0, base_offset - 1
    for entry in iter_transaction_index(disk, path):
        if not last < entry.last_offset < end_offset:
            raise ValueError(f"a marker at offset {entry.last_offset}")
        last = entry.last_offset
        count += 1
    return TransactionIndex(count, last if count else -1)


def iter_transaction_index(disk: Disk, path: str) -> Iterator[AbortedTransaction]:
    """Return all entries of a file, read in parts. Raises ValueError like `decode_entries`."""
    file = disk.open(path, write=False)
    try:
        size = file.size()
        previous = -1
        chunk = _SCAN_ENTRIES * TRANSACTION_ENTRY_BYTES
        for position in range(0, size, chunk):
            for entry in decode_entries(file.pread(min(chunk, size - position), position)):
                if entry.last_offset <= previous:
                    raise ValueError("its entries do not ascend")
                previous = entry.last_offset
                yield entry
    finally:
        file.close()


# An encoded batch in a writable buffer, its header, and the decoded marker of a control batch.
PreparedBatch = tuple[bytearray | memoryview, BatchHeader, EndTransactionMarker | None]


def apply_control_batch(
    producers: ProducerStateManager,
    index: TransactionIndex,
    header: BatchHeader,
    offset: int,
    marker: EndTransactionMarker | None,
) -> None:
    """Apply a control batch, appended at `offset`, to the producer state and, for an abort, to the index. `index`: the
    transaction index of its segment.

    `marker` is None for other types of control records, and for a batch whose record compaction has removed.
    """
    if marker is None:
        return
    ended = producers.end_transaction(header, offset, marker.committed, marker.coordinator_epoch)
    if ended is None or marker.committed:
        return
    entry = AbortedTransaction(ended.producer_id, ended.first_offset, ended.last_offset, ended.last_stable_offset)
    # After damage, a log may end before the last entry of its index. Entries must ascend even then.
    if entry.last_offset > index.last_offset:
        index.add(entry)
