"""The state of a transactional id: its record, the valid transitions, and the change that is in flight.

The bytes of records in __transaction_state are those that Apache Kafka 4.4 writes and reads.
"""

from dataclasses import dataclass
from enum import IntEnum
from struct import Struct
from typing import NamedTuple

from kbroker.common import NO_PRODUCER_ID, KafkaError, TopicPartition
from protocol.errors import ErrorCode, MalformedError
from protocol.messages.transaction_records import TransactionLogKey, TransactionLogValue, TransactionPartitions
from protocol.schema.codec import decode, encode

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


# Records.

KEY_VERSION = 0
# Flexible values are written once transaction.version is 1 or higher, since older brokers cannot read them.
PLAIN_VALUE_VERSION, FLEXIBLE_VALUE_VERSION = 0, 1

_VERSION = Struct(">h")
_KEY_PREFIX = _VERSION.pack(KEY_VERSION)
_VALUE_PREFIXES = {version: _VERSION.pack(version) for version in (PLAIN_VALUE_VERSION, FLEXIBLE_VALUE_VERSION)}
# The states that are written; Dead is a tombstone.
_STATES = {state.value: state for state in TransactionState if state < TransactionState.DEAD}


def encode_record(record: TransactionRecord, server_version: int) -> tuple[bytes, bytes | None]:
    """Return the key and value of a record; the value of a tombstone is None.

    `server_version` is the finalized transaction.version.
    """
    key = _KEY_PREFIX + encode(TransactionLogKey(transactional_id=record.transactional_id), KEY_VERSION)
    if isinstance(record, TransactionTombstone):
        return key, None
    version = FLEXIBLE_VALUE_VERSION if server_version >= 1 else PLAIN_VALUE_VERSION
    return key, _VALUE_PREFIXES[version] + encode(_transaction_value(record, version), version)


def decode_record(key: bytes | None, value: bytes | None) -> TransactionRecord | None:
    """Return the record, or None for a type that this broker does not know, which Kafka ignores too.

    Raises MalformedError.
    """
    if key is None or _version(key) != KEY_VERSION:
        return None
    transactional_id = decode(TransactionLogKey, key, KEY_VERSION, _VERSION.size).transactional_id
    if value is None:
        return TransactionTombstone(transactional_id)
    version = _version(value)
    if version not in _VALUE_PREFIXES:
        raise MalformedError(f"TransactionLogValue version {version}")
    return _decode_value(transactional_id, decode(TransactionLogValue, value, version, _VERSION.size))


def _version(buf: bytes) -> int:
    if len(buf) < _VERSION.size:
        raise MalformedError(f"a record's key or value of {len(buf)} bytes")
    version: int = _VERSION.unpack_from(buf)[0]
    return version


def _transaction_value(metadata: TransactionMetadata, version: int) -> TransactionLogValue:
    value = TransactionLogValue(
        producer_id=metadata.producer_id,
        producer_epoch=metadata.producer_epoch,
        transaction_timeout_ms=metadata.timeout_ms,
        transaction_status=metadata.state.value,
        # Null in state Empty, which is not the same as an empty list.
        transaction_partitions=None if metadata.state is TransactionState.EMPTY else _by_topic(metadata),
        transaction_last_update_timestamp_ms=metadata.last_update_ms,
        transaction_start_timestamp_ms=metadata.start_ms,
    )
    if version >= FLEXIBLE_VALUE_VERSION:
        value.previous_producer_id = metadata.previous_producer_id
        value.next_producer_id = metadata.next_producer_id
        value.client_transaction_version = metadata.client_transaction_version
    return value


def _by_topic(metadata: TransactionMetadata) -> list[TransactionPartitions]:
    # Sorted: the bytes must not depend on the order of a set.
    topics: dict[str, list[int]] = {}
    for topic, partition in sorted(metadata.partitions):
        topics.setdefault(topic, []).append(partition)
    return [TransactionPartitions(topic=topic, partition_ids=indexes) for topic, indexes in topics.items()]


def _decode_value(transactional_id: str, value: TransactionLogValue) -> TransactionMetadata:
    state = _STATES.get(value.transaction_status)
    if state is None:
        raise MalformedError(f"transaction status {value.transaction_status}")
    return TransactionMetadata(
        transactional_id=transactional_id,
        producer_id=value.producer_id,
        producer_epoch=value.producer_epoch,
        timeout_ms=value.transaction_timeout_ms,
        state=state,
        partitions=frozenset(
            TopicPartition(topic.topic, index)
            for topic in value.transaction_partitions or ()
            for index in topic.partition_ids
        ),
        start_ms=value.transaction_start_timestamp_ms,
        last_update_ms=value.transaction_last_update_timestamp_ms,
        previous_producer_id=value.previous_producer_id,
        next_producer_id=value.next_producer_id,
        client_transaction_version=value.client_transaction_version,
    )
