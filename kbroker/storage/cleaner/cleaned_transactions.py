"""What compaction knows of transactions while it walks over a log: which batches were aborted, and which markers have
nothing left to mark.

All transactions below the last stable offset are decided. Batches of aborted ones may go at once. A marker may go when
nothing of its transaction is left, and then only after delete.retention.ms, as a tombstone: a reader that is in the
middle of the transaction has to see its end, and after a restart the producers' states are learnt from it (KIP-98).
"""

from collections import deque
from collections.abc import Iterable, Sequence
from heapq import heappop, heappush

from kbroker.common import Buffer
from kbroker.runtime.disk import Disk
from kbroker.storage import file_names
from kbroker.storage.cleaner.source_segments import SegmentDamaged, SourceSegment
from kbroker.storage.indexes.transaction_index import AbortedTransaction, iter_aborted
from protocol.records.batch import BatchHeader
from protocol.records.control import find_end_marker


class AbortedAhead:
    """The aborted transactions of what is compacted, read from the segments' indexes no earlier than they are needed.
    An entry stands where the marker is, which may be segments after the first batch."""

    def __init__(
        self,
        disk: Disk,
        directory: str,
        sources: Sequence[SourceSegment],
        start: int,
        later: Iterable[AbortedTransaction],
    ) -> None:
        """Those of which something is at `start` or later. `later`: those whose markers follow the last source."""
        self._disk = disk
        self._directory = directory
        self._start = start
        self._unread = deque(source for source in sources if source.end_offset > start)
        self._later = tuple(later)
        # Every transaction that begins below this offset has been given.
        self._covered = 0

    def up_to(self, end: int) -> Iterable[AbortedTransaction]:
        """What begins below `end` and was not given before, and perhaps more. Raises Damaged."""
        while self._covered < end:
            if not self._unread:
                later, self._later = self._later, ()
                self._covered = end
                yield from later
                return
            source = self._unread.popleft()
            for entry in self._read(source):
                self._covered = max(self._covered, entry.last_stable_offset)
                if entry.last_offset >= self._start:
                    yield entry

    def _read(self, source: SourceSegment) -> Iterable[AbortedTransaction]:
        path = file_names.segment_file(self._directory, source.base_offset, file_names.TXN_INDEX)
        try:
            yield from iter_aborted(self._disk, path)
        except FileNotFoundError:
            return
        except ValueError as error:
            raise SegmentDamaged(f"{path}: {error}") from error


class _Reached:
    """An aborted transaction that has been reached. `seen`: a batch of it is still there."""

    __slots__ = ("seen", "transaction")

    def __init__(self, transaction: AbortedTransaction) -> None:
        self.transaction = transaction
        self.seen = False


class CleanedTransactionMetadata:
    """To be told of each batch of some producer, in order of offset. `kept`: aborted transactions of which something
    is left, in the order of their markers: whoever writes a segment takes them for its index."""

    def __init__(self) -> None:
        self.kept: list[AbortedTransaction] = []
        # By first offset and last offset, which no two have in common.
        self._due: list[tuple[int, int, AbortedTransaction]] = []
        self._aborted: dict[int, _Reached] = {}
        # Producers of committed transactions of which a batch was seen.
        self._committed: set[int] = set()

    def add(self, aborted: Iterable[AbortedTransaction]) -> None:
        """Aborted transactions, each once, none of which should have been reached before."""
        for one in aborted:
            heappush(self._due, (one.first_offset, one.last_offset, one))

    def is_aborted(self, header: BatchHeader) -> bool:
        """Whether a transactional batch with data may go."""
        self._reach(header.last_offset)
        found = self._aborted.get(header.producer_id)
        if found is None:
            self._committed.add(header.producer_id)
            return False
        found.seen = True
        return True

    def is_spent(self, header: BatchHeader, batch: Buffer) -> bool:
        """Whether a control batch has nothing left to mark."""
        self._reach(header.last_offset)
        if not header.count:
            # An earlier compaction took its record.
            return True
        marker = find_end_marker(batch)
        if marker is None:
            # It marks something else.
            return False
        if marker.committed:
            seen = header.producer_id in self._committed
            self._committed.discard(header.producer_id)
            return not seen
        found = self._aborted.pop(header.producer_id, None)
        if found is None or not found.seen:
            return True
        self.kept.append(found.transaction)
        return False

    def _reach(self, offset: int) -> None:
        while self._due and self._due[0][0] <= offset:
            transaction = heappop(self._due)[2]
            self._aborted.setdefault(transaction.producer_id, _Reached(transaction))
