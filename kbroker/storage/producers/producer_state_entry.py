"""The state of one producer of a partition."""

from collections.abc import Iterator
from struct import Struct
from typing import NamedTuple

NO_EPOCH = -1
NO_SEQUENCE = -1
NO_OFFSET = -1
NO_TIMESTAMP = -1
NO_COORDINATOR_EPOCH = -1
MAX_SEQUENCE = 0x7FFFFFFF

# A producer may have this many batches in flight.
MAX_BATCHES = 5

# A batch in the log: (first sequence, last sequence, last offset, offset delta, max timestamp in ms).
StoredBatch = tuple[int, int, int, int, int]

# A packed batch: last sequence, last offset, offset delta, timestamp.
_BATCH = Struct(">iqiq")
OLDER_BYTES = _BATCH.size * (MAX_BATCHES - 1)
NO_OLDER = _BATCH.pack(0, NO_OFFSET, 0, 0) * (MAX_BATCHES - 1)


class ActiveProducer(NamedTuple):
    """A producer in the response of DescribeProducers (KIP-664)."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp: int
    coordinator_epoch: int
    current_txn_start_offset: int


class ProducerStateEntry:
    """The state of one producer id.

    `batches`: the last ones, with those that are packed in `older` the last five. `last_timestamp`: the timestamp of
    its last batch, which determines its expiration. `open_bit`: while a transaction is open, the attribute bit
    TRANSACTIONAL, which its batches must have; otherwise 0.
    """

    __slots__ = (
        "batches",
        "coordinator_epoch",
        "epoch",
        "last_timestamp",
        "next_sequence",
        "older",
        "open_bit",
        "txn_first_offset",
    )

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        # A list: a deque takes 760 bytes even if it is empty.
        self.batches: list[StoredBatch] = []
        self.older = b""
        # The sequence of the next batch. After a marker with a new epoch there are no batches yet, and the first has 0.
        self.next_sequence = 0
        self.last_timestamp = NO_TIMESTAMP
        self.coordinator_epoch = NO_COORDINATOR_EPOCH
        self.open_bit = 0
        self.txn_first_offset = NO_OFFSET

    def begin_epoch(self, epoch: int) -> None:
        """Begin a new epoch: older batches no longer count."""
        self.epoch = epoch
        self.batches.clear()
        self.older = b""
        self.next_sequence = 0

    def last_batches(self) -> list[StoredBatch]:
        """Return the last five batches, the oldest first."""
        return [*unpack_batches(self.older), *self.batches][-MAX_BATCHES:]

    def packed_older(self) -> bytes:
        """Return the batches before the last one, packed: at most four."""
        packed = self.older
        for _, last_sequence, last_offset, offset_delta, timestamp in self.batches[:-1]:
            packed += _BATCH.pack(last_sequence, last_offset, offset_delta, timestamp)
        return packed[-OLDER_BYTES:]


def unpack_batches(packed: bytes) -> Iterator[StoredBatch]:
    for last_sequence, last_offset, offset_delta, timestamp in _BATCH.iter_unpack(packed):
        if last_offset != NO_OFFSET:
            yield stored_batch(last_sequence, last_offset, offset_delta, timestamp)


def stored_batch(last_sequence: int, last_offset: int, offset_delta: int, timestamp: int) -> StoredBatch:
    """Return a batch from the fields that are stored. Those of coordinators have no sequences."""
    first = add_sequence(last_sequence, -offset_delta) if last_sequence >= 0 else NO_SEQUENCE
    return first, last_sequence, last_offset, offset_delta, timestamp


def add_sequence(sequence: int, increment: int) -> int:
    """Add to a sequence. After 2^31 - 1 sequences continue with 0."""
    return (sequence + increment) & MAX_SEQUENCE
