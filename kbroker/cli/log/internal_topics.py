"""Decodes records of __consumer_offsets and __transaction_state, with Kafka's field names."""

import base64
from typing import Any

from kbroker.storage.metadata_files import encode_topic_id
from protocol.errors import MalformedError
from protocol.messages.consumer_protocol import ConsumerProtocolAssignment, ConsumerProtocolSubscription
from protocol.messages.group_records import (
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
)
from protocol.messages.transaction_records import TransactionLogKey, TransactionLogValue
from protocol.schema.codec import decode
from protocol.schema.message import Message, Struct, message_info

CONSUMER_OFFSETS, TRANSACTION_STATE = "__consumer_offsets", "__transaction_state"

# By the version of the key: the kind of record, the message of the key, the message of the value.
_RECORD_TYPES: dict[str, dict[int, tuple[str, type[Message], type[Message]]]] = {
    CONSUMER_OFFSETS: {
        0: ("offset commit", OffsetCommitKey, OffsetCommitValue),
        1: ("offset commit", OffsetCommitKey, OffsetCommitValue),
        2: ("group metadata", GroupMetadataKey, GroupMetadataValue),
    },
    TRANSACTION_STATE: {0: ("transaction", TransactionLogKey, TransactionLogValue)},
}
# Records of consumer (KIP-848), share and streams groups in Kafka's CoordinatorRecordType, which are not decoded.
_NEWER_GROUP_RECORDS = range(3, 24)
# Kafka's TransactionState by number.
_TRANSACTION_STATES = (
    "Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort", "Dead", "PrepareEpochFence",
)  # fmt: skip

Decoded = dict[str, Any]


def is_internal(topic: str) -> bool:
    return topic in _RECORD_TYPES


def decode_internal(topic: str, key: bytes | None, value: bytes | None) -> Decoded:
    """Return {"kind", "key", "value"}, with None as the value of a tombstone. Raises MalformedError."""
    version, position = _read_version(key)
    record_type = _RECORD_TYPES[topic].get(version)
    if record_type is None:
        if topic == CONSUMER_OFFSETS and version in _NEWER_GROUP_RECORDS:
            return {"kind": f"record of a newer group type {version}", "key": None, "value": None}
        raise MalformedError(f"a key of unknown version {version} in {topic}")
    kind, key_message, value_message = record_type
    decoded_key = _struct_to_json(decode(key_message, key or b"", version, position))
    return {"kind": kind, "key": decoded_key, "value": None if value is None else _decode_value(value_message, value)}


def _decode_value(message: type[Message], value: bytes) -> Decoded:
    version, position = _read_version(value)
    if not message_info(message).min_version <= version <= message_info(message).max_version:
        raise MalformedError(f"{message.__name__} of version {version}")
    decoded: Decoded = {"version": version, **_struct_to_json(decode(message, value, version, position), version)}
    if message is TransactionLogValue:
        status = decoded["transaction_status"]
        is_known = 0 <= status < len(_TRANSACTION_STATES)
        decoded["transaction_status"] = _TRANSACTION_STATES[status] if is_known else status
    elif decoded.get("protocol_type") == "consumer":
        for member in decoded["members"]:
            member["subscription"] = _decode_consumer_protocol(ConsumerProtocolSubscription, member["subscription"])
            member["assignment"] = _decode_consumer_protocol(ConsumerProtocolAssignment, member["assignment"])
    return decoded


def _decode_consumer_protocol(message: type[Message], encoded: str) -> Decoded | str:
    """Decode base64 of the consumer protocol; returned unchanged if it is something else."""
    data = base64.b64decode(encoded)
    try:
        version, position = _read_version(data)
        if version < 0:
            return encoded
        version = min(version, message_info(message).max_version)
        return {"version": version, **_struct_to_json(decode(message, data, version, position), version)}
    except MalformedError:
        return encoded


def _read_version(data: bytes | None) -> tuple[int, int]:
    """Return the version in the first two bytes, and the position after it."""
    if data is None or len(data) < 2:
        raise MalformedError(f"a record's key or value of {len(data or b'')} bytes")
    return int.from_bytes(data[:2], "big", signed=True), 2


def _struct_to_json(struct: Struct, version: int | None = None) -> Decoded:
    """Return the fields that `version` has (None: all fields), with bytes as base64."""
    rows = type(struct).__rows__.items()
    return {
        name: encode_topic_id(getattr(struct, name)) if row.type == "uuid" else _to_json(getattr(struct, name), version)
        for name, row in rows
        if version is None or row.is_in(version)
    }


def _to_json(value: Any, version: int | None) -> Any:
    if isinstance(value, Struct):
        return _struct_to_json(value, version)
    if isinstance(value, list):
        return [_to_json(item, version) for item in value]
    if isinstance(value, bytes | bytearray | memoryview):
        return base64.b64encode(value).decode()
    return value
