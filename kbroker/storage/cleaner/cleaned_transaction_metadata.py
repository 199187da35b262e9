"""The transactions in segments to compact: which batches were aborted, and which markers are still needed.

All transactions below the last stable offset have ended. Batches of aborted ones are removed immediately. A marker is
removed when no batch of its transaction is left and, as with a tombstone, delete.retention.ms has passed: a reader in
the middle of the transaction must see its end, and after a restart the producer state is rebuilt from it (KIP-98).
"""

from collections import deque
from collections.abc import Iterable, Sequence
from heapq import heappop, heappush

from kbroker.common import Buffer
from kbroker.runtime.disk import Disk
from kbroker.storage import file_names
from kbroker.storage.cleaner.source_segments import SegmentDamaged, SourceSegment
from kbroker.storage.indexes.transaction_index import AbortedTransaction, iter_transaction_index
from protocol.records.batch import BatchHeader
from protocol.records.control import find_end_marker


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


class _ActiveTransaction:
    """An aborted transaction whose first batch has been reached. `has_batches`: not all its batches are removed."""

    __slots__ = ("has_batches", "transaction")

    def __init__(self, transaction: AbortedTransaction) -> None:
        self.transaction = transaction
        self.has_batches = False


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
