"""The bytes of records in __transaction_state, as Apache Kafka 4.3 writes and reads them."""

from struct import Struct

from kbroker.common import TopicPartition
from kbroker.coordinator.transaction.transaction_metadata import Record, TransactionMetadata, TransactionTombstone
from kbroker.coordinator.transaction.transaction_state import TransactionState
from protocol.errors import MalformedError
from protocol.messages.transaction_records import TransactionLogKey, TransactionLogValue, TransactionPartitions
from protocol.schema.codec import decode, encode

KEY_VERSION = 0
# By the finalized transaction.version: version 1 is written from 1 on, so that older brokers can read what they may.
PLAIN_VALUE, FLEXIBLE_VALUE = 0, 1

_VERSION = Struct(">h")
_KEY_PREFIX = _VERSION.pack(KEY_VERSION)
_VALUE_PREFIXES = {version: _VERSION.pack(version) for version in (PLAIN_VALUE, FLEXIBLE_VALUE)}
# Those that are written: who is dead has a tombstone.
_STATES = {state.value: state for state in TransactionState if state < TransactionState.DEAD}


def encode_record(record: Record, server_version: int) -> tuple[bytes, bytes | None]:
    """The key and value to append; a tombstone's value is None. `server_version` is the finalized
    transaction.version."""
    key = _KEY_PREFIX + encode(TransactionLogKey(transactional_id=record.transactional_id), KEY_VERSION)
    if isinstance(record, TransactionTombstone):
        return key, None
    version = FLEXIBLE_VALUE if server_version >= 1 else PLAIN_VALUE
    return key, _VALUE_PREFIXES[version] + encode(_value(record, version), version)


def decode_record(key: bytes | None, value: bytes | None) -> Record | None:
    """What a record of the log says; None for kinds that this broker does not know, which Kafka passes over too.

    Raises MalformedError for bytes that no Kafka wrote.
    """
    if key is None or _version(key) != KEY_VERSION:
        return None
    transactional_id = decode(TransactionLogKey, key, KEY_VERSION, _VERSION.size).transactional_id
    if value is None:
        return TransactionTombstone(transactional_id)
    version = _version(value)
    if version not in _VALUE_PREFIXES:
        raise MalformedError(f"TransactionLogValue version {version}")
    return _read(transactional_id, decode(TransactionLogValue, value, version, _VERSION.size))


def _version(buf: bytes) -> int:
    if len(buf) < _VERSION.size:
        raise MalformedError(f"a record's key or value of {len(buf)} bytes")
    version: int = _VERSION.unpack_from(buf)[0]
    return version


def _value(transaction: TransactionMetadata, version: int) -> TransactionLogValue:
    value = TransactionLogValue(
        producer_id=transaction.producer_id,
        producer_epoch=transaction.producer_epoch,
        transaction_timeout_ms=transaction.timeout_ms,
        transaction_status=transaction.state.value,
        # An empty one has none, which is not the same as no partitions.
        transaction_partitions=None if transaction.state is TransactionState.EMPTY else _by_topic(transaction),
        transaction_last_update_timestamp_ms=transaction.last_update_ms,
        transaction_start_timestamp_ms=transaction.start_ms,
    )
    if version >= FLEXIBLE_VALUE:
        value.previous_producer_id = transaction.previous_producer_id
        value.next_producer_id = transaction.next_producer_id
        value.client_transaction_version = transaction.version
    return value


def _by_topic(transaction: TransactionMetadata) -> list[TransactionPartitions]:
    """Sorted: the bytes must not depend on a set's order."""
    found: dict[str, list[int]] = {}
    for topic, partition in sorted(transaction.partitions):
        found.setdefault(topic, []).append(partition)
    return [TransactionPartitions(topic=topic, partition_ids=indexes) for topic, indexes in found.items()]


def _read(transactional_id: str, value: TransactionLogValue) -> TransactionMetadata:
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
        version=value.client_transaction_version,
    )
