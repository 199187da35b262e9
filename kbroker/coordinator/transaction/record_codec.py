"""The bytes of records in __transaction_state, as Apache Kafka 4.3 writes and reads them."""

from struct import Struct

from kbroker.common import TopicPartition
from kbroker.coordinator.transaction.transaction_metadata import (
    TransactionMetadata,
    TransactionRecord,
    TransactionState,
    TransactionTombstone,
)
from protocol.errors import MalformedError
from protocol.messages.transaction_records import TransactionLogKey, TransactionLogValue, TransactionPartitions
from protocol.schema.codec import decode, encode

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
    return _metadata(transactional_id, decode(TransactionLogValue, value, version, _VERSION.size))


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


def _metadata(transactional_id: str, value: TransactionLogValue) -> TransactionMetadata:
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
