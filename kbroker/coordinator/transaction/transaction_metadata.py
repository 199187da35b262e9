"""The state of a transactional id: its committed record, the transitions, and the change that is in flight."""

from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from kbroker.common import NO_PRODUCER_ID, KafkaError, TopicPartition
from protocol.errors import ErrorCode

NO_EPOCH = -1
NO_TIMESTAMP = -1
MAX_EPOCH = 32767
# A transaction with this timeout never times out: it is part of a two-phase commit (KIP-939).
NO_TIMEOUT_MS = 2**31 - 1
# The first client version of transactions that bumps the epoch with each transaction (KIP-890).
EPOCH_BUMP_VERSION = 2


class TransactionState(IntEnum):
    """The values are those of the records in __transaction_state.

    Empty: the transactional id has a producer, and no transaction yet.
        -> Ongoing: partitions are added
        -> PrepareAbort: EndTxn aborts without partitions (transactions version 2)
        -> Empty: another InitProducerId
        -> Dead: the transactional id expires

    Ongoing: partitions are in the transaction.
        -> Ongoing: more partitions are added
        -> PrepareCommit: EndTxn commits
        -> PrepareAbort: EndTxn aborts, the transaction times out, or InitProducerId fences its producer

    PrepareCommit, PrepareAbort: the outcome is decided, and transaction markers are sent to the partitions. Requests
    get CONCURRENT_TRANSACTIONS.
        -> CompleteCommit, CompleteAbort: all markers are written

    CompleteCommit, CompleteAbort: the transaction is over. Transitions as from Empty.

    Dead: the transactional id has expired; its record is a tombstone.

    PrepareEpochFence: Kafka fences a producer in two steps. Here it is one, so no transactional id is in this state.
    """

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7

    @property
    def state_name(self) -> str:
        """The name in ListTransactions and DescribeTransactions."""
        return STATE_NAMES[self]


STATE_NAMES = {
    TransactionState.EMPTY: "Empty",
    TransactionState.ONGOING: "Ongoing",
    TransactionState.PREPARE_COMMIT: "PrepareCommit",
    TransactionState.PREPARE_ABORT: "PrepareAbort",
    TransactionState.COMPLETE_COMMIT: "CompleteCommit",
    TransactionState.COMPLETE_ABORT: "CompleteAbort",
    TransactionState.DEAD: "Dead",
    TransactionState.PREPARE_EPOCH_FENCE: "PrepareEpochFence",
}

PREPARED = frozenset({TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT})
COMPLETED = frozenset({TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT})
# States without an open transaction. A transaction may begin, and the transactional id may expire.
IDLE = COMPLETED | {TransactionState.EMPTY}

VALID_PREVIOUS_STATES = {
    TransactionState.EMPTY: IDLE,
    TransactionState.ONGOING: IDLE | {TransactionState.ONGOING},
    TransactionState.PREPARE_COMMIT: frozenset({TransactionState.ONGOING}),
    # An abort without partitions does not need the state Ongoing (transactions version 2).
    TransactionState.PREPARE_ABORT: IDLE | {TransactionState.ONGOING},
    TransactionState.COMPLETE_COMMIT: frozenset({TransactionState.PREPARE_COMMIT}),
    TransactionState.COMPLETE_ABORT: frozenset({TransactionState.PREPARE_ABORT}),
    TransactionState.DEAD: IDLE,
}


class TransactionMetadata(NamedTuple):
    """A transactional id with its last or open transaction, as in a record of __transaction_state.

    `last_producer_epoch` is the epoch before the last bump, if the producer itself requested the bump; it is not in the
    log. `previous_producer_id` is the producer id before the last transition. `next_producer_id` replaces `producer_id`
    when the transaction completes, if the epochs of `producer_id` are exhausted. Timestamps are milliseconds since the
    epoch.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    state: TransactionState = TransactionState.EMPTY
    partitions: frozenset[TopicPartition] = frozenset()
    start_ms: int = NO_TIMESTAMP
    last_update_ms: int = NO_TIMESTAMP
    previous_producer_id: int = NO_PRODUCER_ID
    next_producer_id: int = NO_PRODUCER_ID
    last_producer_epoch: int = NO_EPOCH
    client_transaction_version: int = 0

    @property
    def is_commit(self) -> bool:
        return self.state in (TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT)

    def prepare_transition(self, state: TransactionState, now_ms: int, **changes: object) -> "TransactionMetadata":
        """Return the next record of the transactional id. Raises AssertionError for an invalid transition."""
        if self.state not in VALID_PREVIOUS_STATES[state]:
            raise AssertionError(f"{self.transactional_id}: {self.state.state_name} -> {state.state_name}")
        changes.setdefault("previous_producer_id", self.producer_id)
        return self._replace(state=state, last_update_ms=now_ms, **changes)  # type: ignore[arg-type]


class TransactionTombstone(NamedTuple):
    """The record of an expired transactional id."""

    transactional_id: str


TransactionRecord = TransactionMetadata | TransactionTombstone


@dataclass(slots=True)
class TransactionEntry:
    """The committed metadata of a transactional id, and the state that a transition in flight leads to.

    While `pending_state` is set, other requests get CONCURRENT_TRANSACTIONS. It is set from the decision until its
    record is committed and, for a prepared transaction, until the transaction is completed.

    `open_since_ms`: the monotonic time since which this coordinator counts the timeout of an open transaction. The
    stored start time may be from another broker, whose clock may be hours ahead or behind.
    """

    metadata: TransactionMetadata
    pending_state: TransactionState | None = None
    open_since_ms: int = 0


class ProducerIdAndEpoch(NamedTuple):
    producer_id: int
    epoch: int


class NewProducerIdRequired(Exception):
    """The decision needs a new producer id. The caller allocates one, and repeats the decision."""


def is_epoch_exhausted(epoch: int) -> bool:
    """Return whether there is no higher epoch. No producer gets the highest one, so every producer can be fenced."""
    return epoch >= MAX_EPOCH - 1


def require_new_producer_id(new_producer_id: int) -> int:
    if new_producer_id == NO_PRODUCER_ID:
        raise NewProducerIdRequired
    return new_producer_id


def validate_producer(entry: TransactionEntry | None, producer_id: int, epoch: int) -> TransactionMetadata:
    """Return the metadata. Raises KafkaError unless this is the current producer of the transactional id."""
    if entry is None or entry.metadata.producer_id != producer_id:
        raise KafkaError(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    if entry.metadata.producer_epoch != epoch:
        raise KafkaError(ErrorCode.PRODUCER_FENCED)
    return entry.metadata
