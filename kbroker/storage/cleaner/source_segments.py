"""Reads the segments to compact: their batches, each checked, at a limited rate; and their transactions.

All transactions below the last stable offset have ended. Batches of aborted ones are removed immediately. A marker is
removed when no batch of its transaction is left and, as with a tombstone, delete.retention.ms has passed: a reader in
the middle of the transaction must see its end, and after a restart the producer state is rebuilt from it (KIP-98).
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from heapq import heappop, heappush
from typing import NamedTuple

from kbroker.common import Buffer
from kbroker.runtime.disk import Disk
from kbroker.runtime.environment import Clock
from kbroker.storage import file_names
from kbroker.storage.log.batch_scan import BatchScan
from kbroker.storage.log.transaction_index import AbortedTransaction, iter_transaction_index
from protocol.records.batch import CRC_START, HEADER, HEADER_SIZE, LENGTH_OVERHEAD, MAGIC, BatchHeader
from protocol.records.checksum import crc32c
from protocol.records.control import find_end_marker

_make_header = partial(tuple.__new__, BatchHeader)
_unpack = HEADER.unpack_from


class SegmentDamaged(Exception):
    """A segment is damaged. The message says where."""


class SourceSegment(NamedTuple):
    """A closed segment with offsets [base_offset, end_offset) and `size` bytes.

    `aborted`: the number of entries in its transaction index. Without one of them, compaction would keep the records of
    an aborted transaction forever.
    """

    base_offset: int
    end_offset: int
    size: int
    aborted: int = 0


class Throttler:
    """Sleeps so that at most `rate` bytes per second are recorded, on average since its creation. None: no limit."""

    def __init__(self, rate: float | None, clock: Clock, sleep: Callable[[float], None]) -> None:
        self._rate = rate
        self._clock = clock
        self._sleep = sleep
        self._start_ms = clock.mono_ms()
        self._bytes = 0

    def record(self, size: int) -> None:
        """Record that `size` bytes were read or written, and sleep if necessary."""
        if self._rate is None:
            return
        self._bytes += size
        ahead_s = self._bytes / self._rate - (self._clock.mono_ms() - self._start_ms) / 1000
        if ahead_s > 0:
            self._sleep(ahead_s)


class SourceReader:
    """Iterates over (header, complete batch) of a segment, checking CRCs. Raises SegmentDamaged, OSError.

    A batch that is larger than `chunk_bytes` is read into memory only after its CRC has confirmed its length.
    """

    def __init__(
        self, disk: Disk, directory: str, source: SourceSegment, chunk_bytes: int, throttler: Throttler
    ) -> None:
        self._path = file_names.segment_file(directory, source.base_offset, file_names.LOG)
        self._file = disk.open(self._path, write=False)
        self._source = source
        self._chunk_bytes = chunk_bytes
        self._throttler = throttler
        self._position = 0

    def __iter__(self) -> Iterator[tuple[BatchHeader, bytes]]:
        next_offset, end_offset, size, _ = self._source
        chunk, chunk_start = b"", 0
        while self._position < size:
            position = self._position
            pos = position - chunk_start
            if pos + HEADER_SIZE > len(chunk):
                chunk, chunk_start, pos = self._read(position, self._chunk_bytes), position, 0
                if len(chunk) < HEADER_SIZE:
                    raise self.damaged(f"{len(chunk)} bytes where a batch is expected")
            header = _make_header(_unpack(chunk, pos))
            base, length, _, magic, crc, _, delta, _, _, _, _, _, _ = header
            batch_size = length + LENGTH_OVERHEAD
            if (
                magic != MAGIC
                or not HEADER_SIZE <= batch_size <= size - position
                or base < next_offset
                or delta < 0
                or base + delta >= end_offset
            ):
                raise self.damaged(f"a batch of {batch_size} bytes of format {magic} with offset {base}")
            if pos + batch_size > len(chunk):
                self._check_large_batch(position, batch_size, base)
                chunk, chunk_start, pos = self._read(position, max(batch_size, self._chunk_bytes)), position, 0
            if crc32c(memoryview(chunk)[pos + CRC_START : pos + batch_size]) != crc:
                raise self.damaged(f"a wrong CRC in the batch of offset {base}")
            next_offset = base + delta + 1
            yield header, chunk[pos : pos + batch_size]
            self._position = position + batch_size

    def iter_chunks(self, size: int) -> Iterator[bytes]:
        """Yield the first `size` bytes of the file, in chunks."""
        for position in range(0, size, self._chunk_bytes):
            yield self._read(position, min(self._chunk_bytes, size - position))

    def damaged(self, fault: str) -> SegmentDamaged:
        """Return the error for the current batch."""
        return SegmentDamaged(f"{self._path} has at position {self._position} {fault}")

    def _read(self, position: int, size: int) -> bytes:
        data = self._file.pread(min(size, self._source.size - position), position)
        self._throttler.record(len(data))
        return data

    def _check_large_batch(self, position: int, size: int, base_offset: int) -> None:
        if size <= self._chunk_bytes:
            return
        scan = BatchScan(self._file, position, position + size, base_offset, base_offset, check_crc=True)
        for _ in scan:
            pass
        if scan.fault is not None:
            raise self.damaged(scan.fault)


class AbortedTransactions:
    """The aborted transactions of the source segments, read from their indexes no earlier than needed.

    The entry of a transaction is in the segment of its marker, perhaps several segments after its first batch.
    """

    def __init__(
        self,
        disk: Disk,
        directory: str,
        sources: Sequence[SourceSegment],
        start: int,
        later: Iterable[AbortedTransaction],
    ) -> None:
        """For transactions with a batch at `start` or later. `later`: those with a marker after the last source."""
        self._disk = disk
        self._directory = directory
        self._start = start
        self._unread = deque(source for source in sources if source.end_offset > start)
        self._later = tuple(later)
        # Every transaction that begins below this offset has been returned.
        self._returned_to = 0

    def begun_before(self, end: int) -> Iterable[AbortedTransaction]:
        """Return at least the transactions that begin below `end` and are not returned yet. Raises SegmentDamaged."""
        while self._returned_to < end:
            if not self._unread:
                later, self._later = self._later, ()
                self._returned_to = end
                yield from later
                return
            source = self._unread.popleft()
            for entry in self._read(source):
                self._returned_to = max(self._returned_to, entry.last_stable_offset)
                if entry.last_offset >= self._start:
                    yield entry

    def _read(self, source: SourceSegment) -> Iterable[AbortedTransaction]:
        path = file_names.segment_file(self._directory, source.base_offset, file_names.TXN_INDEX)
        if not source.aborted:
            return
        found = 0
        try:
            for entry in iter_transaction_index(self._disk, path):
                found += 1
                yield entry
        except FileNotFoundError:
            # Retention may have deleted the segment. Otherwise the file was lost.
            if not self._disk.exists(file_names.segment_file(self._directory, source.base_offset, file_names.LOG)):
                raise
        except ValueError as error:
            raise SegmentDamaged(f"{path}: {error}") from error
        if found < source.aborted:
            raise SegmentDamaged(f"{path}: {found} entries where {source.aborted} are expected")


@dataclass(slots=True, eq=False)
class _ActiveTransaction:
    """An aborted transaction whose first batch has been reached. `has_batches`: not all its batches are removed."""

    transaction: AbortedTransaction
    has_batches: bool = False


class CleanedTransactionMetadata:
    """Feed it every batch of a producer, in offset order.

    `kept`: aborted transactions whose markers are still needed, in marker order. The writer of a segment moves them to
    its index.
    """

    def __init__(self) -> None:
        self.kept: list[AbortedTransaction] = []
        # A heap by first offset and last offset; no two transactions have both in common.
        self._upcoming: list[tuple[int, int, AbortedTransaction]] = []
        self._aborted: dict[int, _ActiveTransaction] = {}
        # Producers with a remaining batch of a committed transaction.
        self._committed: set[int] = set()

    def add(self, aborted: Iterable[AbortedTransaction]) -> None:
        """Add aborted transactions, each once and before its first batch."""
        for transaction in aborted:
            heappush(self._upcoming, (transaction.first_offset, transaction.last_offset, transaction))

    def is_aborted(self, header: BatchHeader) -> bool:
        """Return whether a transactional batch of records was aborted."""
        self._advance(header.last_offset)
        active = self._aborted.get(header.producer_id)
        if active is None:
            self._committed.add(header.producer_id)
            return False
        active.has_batches = True
        return True

    def is_spent(self, header: BatchHeader, batch: Buffer) -> bool:
        """Return whether a control batch is the marker of a transaction of which no batch is left."""
        self._advance(header.last_offset)
        if not header.count:
            # An earlier compaction has removed its record.
            return True
        marker = find_end_marker(batch)
        if marker is None:
            # It is another type of control record.
            return False
        if marker.committed:
            has_batches = header.producer_id in self._committed
            self._committed.discard(header.producer_id)
            return not has_batches
        active = self._aborted.pop(header.producer_id, None)
        if active is None or not active.has_batches:
            return True
        self.kept.append(active.transaction)
        return False

    def _advance(self, offset: int) -> None:
        """Activate the transactions that begin at `offset` or before."""
        while self._upcoming and self._upcoming[0][0] <= offset:
            transaction = heappop(self._upcoming)[2]
            self._aborted.setdefault(transaction.producer_id, _ActiveTransaction(transaction))
