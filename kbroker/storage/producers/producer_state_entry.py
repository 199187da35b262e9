"""The state of one producer of a partition."""

from collections import deque
from typing import NamedTuple

NO_EPOCH = -1
NO_SEQUENCE = -1
NO_OFFSET = -1
NO_TIMESTAMP = -1
NO_COORDINATOR_EPOCH = -1

# A producer may have this many batches in flight.
_MAX_BATCHES = 5

# A batch in the log: (first sequence, last sequence, last offset, offset delta, max timestamp in ms).
StoredBatch = tuple[int, int, int, int, int]


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

    `last_timestamp`: the timestamp of its last batch, which determines its expiration. `open_bit`: while a transaction
    is open, the attribute bit TRANSACTIONAL, which its batches must have; otherwise 0.
    """

    __slots__ = (
        "batches",
        "coordinator_epoch",
        "epoch",
        "last_timestamp",
        "next_sequence",
        "open_bit",
        "txn_first_offset",
    )

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.batches: deque[StoredBatch] = deque(maxlen=_MAX_BATCHES)
        # The sequence of the next batch. After a marker with a new epoch there are no batches yet, and the first has 0.
        self.next_sequence = 0
        self.last_timestamp = NO_TIMESTAMP
        self.coordinator_epoch = NO_COORDINATOR_EPOCH
        self.open_bit = 0
        self.txn_first_offset = NO_OFFSET
