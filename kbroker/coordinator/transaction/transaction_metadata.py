"""What is known of a transactional id: the committed part, which is a record of the log, and what is under way."""

from dataclasses import dataclass
from typing import NamedTuple

from kbroker.common import NO_PRODUCER_ID, KafkaError, TopicPartition
from kbroker.coordinator.transaction.transaction_state import PREVIOUS, TransactionState
from protocol.errors import ErrorCode

NO_EPOCH = -1
NO_TIMESTAMP = -1
MAX_EPOCH = 32767
# A timeout of this many milliseconds is none: the transaction is part of a two-phase commit (KIP-939).
NO_TIMEOUT_MS = 2**31 - 1
# The client's version of transactions from which on the epoch is bumped with each (KIP-890).
EPOCH_BUMP_VERSION = 2


class TransactionMetadata(NamedTuple):
    """A transactional id with its last or open transaction (Kafka's TransactionMetadata), as it is written down.

    `last_epoch` is what `producer_epoch` was before the last bump, if its producer asked for that one; it is not in
    the log. `previous_producer_id` is what the id was before the last change of state. `next_producer_id` is the one
    that completing goes on with when the epochs of `producer_id` are used up. Times are in milliseconds since the
    epoch. `version` is the client's version of transactions as of the last change.
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
    last_epoch: int = NO_EPOCH
    version: int = 0

    @property
    def is_exhausted(self) -> bool:
        """No producer gets the highest epoch, so that every producer can be fenced."""
        return is_exhausted(self.producer_epoch)

    @property
    def is_committing(self) -> bool:
        return self.state in (TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT)

    def to(self, state: TransactionState, now_ms: int, **changes: object) -> "TransactionMetadata":
        """The next record."""
        if self.state not in PREVIOUS[state]:
            raise AssertionError(f"{state.label} does not follow {self.state.label}")
        changes.setdefault("previous_producer_id", self.producer_id)
        return self._replace(state=state, last_update_ms=now_ms, **changes)  # type: ignore[arg-type]


class TransactionTombstone(NamedTuple):
    """The transactional id is forgotten."""

    transactional_id: str


Record = TransactionMetadata | TransactionTombstone


@dataclass(slots=True)
class TransactionEntry:
    """A transactional id of a coordinator. One change at a time: `pending` is the state that is being written, or
    that the markers' last answer will lead to."""

    transaction: TransactionMetadata
    pending: TransactionState | None = None


class ProducerId(NamedTuple):
    """A producer as it names itself."""

    producer_id: int
    epoch: int


class ProducerIdNeeded(Exception):
    """The decision needs a producer id that was never given out: get one and decide anew."""


def is_exhausted(epoch: int) -> bool:
    return epoch >= MAX_EPOCH - 1


def fresh(producer_id: int) -> int:
    if producer_id == NO_PRODUCER_ID:
        raise ProducerIdNeeded
    return producer_id


def check_producer(entry: TransactionEntry | None, producer_id: int, epoch: int) -> TransactionMetadata:
    """That it is the transactional id's producer. Raises KafkaError: another id, or another epoch."""
    if entry is None or entry.transaction.producer_id != producer_id:
        raise KafkaError(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    if entry.transaction.producer_epoch != epoch:
        raise KafkaError(ErrorCode.PRODUCER_FENCED)
    return entry.transaction
