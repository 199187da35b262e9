"""Records of __consumer_offsets and __transaction_state, taken apart: (what it is, key, value) with Kafka's names."""

import base64
from typing import Any

from kbroker.storage.partition_metadata import encode_topic_id
from protocol.errors import MalformedError
from protocol.messages.consumer_protocol import ConsumerProtocolAssignment, ConsumerProtocolSubscription
from protocol.messages.group_records import (
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
)
from protocol.messages.transaction_records import TransactionLogKey, TransactionLogValue
from protocol.schema.message import Message, Struct, decode, facts

CONSUMER_OFFSETS, TRANSACTION_STATE = "__consumer_offsets", "__transaction_state"

# By the key's version: what it is, the key's message, the value's.
_KINDS: dict[str, dict[int, tuple[str, type[Message], type[Message]]]] = {
    CONSUMER_OFFSETS: {
        0: ("offset commit", OffsetCommitKey, OffsetCommitValue),
        1: ("offset commit", OffsetCommitKey, OffsetCommitValue),
        2: ("group metadata", GroupMetadataKey, GroupMetadataValue),
    },
    TRANSACTION_STATE: {0: ("transaction", TransactionLogKey, TransactionLogValue)},
}
# Of KIP-848 consumer, share and streams groups, by Kafka's CoordinatorRecordType.
_NEWER_GROUPS = range(3, 24)
# TransactionStatus, by number.
_STATES = (
    "Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort", "Dead", "PrepareEpochFence",
)  # fmt: skip

Decoded = dict[str, Any]


def is_internal(topic: str) -> bool:
    return topic in _KINDS


def decode_internal(topic: str, key: bytes | None, value: bytes | None) -> Decoded:
    """{"kind", "key", "value"}; the value is None for a tombstone. Raises MalformedError for what no Kafka wrote."""
    version, at = _version(key)
    known = _KINDS[topic].get(version)
    if known is None:
        if topic == CONSUMER_OFFSETS and version in _NEWER_GROUPS:
            return {"kind": f"record of a newer group type {version}", "key": None, "value": None}
        raise MalformedError(f"a key of unknown version {version} in {topic}")
    kind, key_message, value_message = known
    shown = _plain(decode(key_message, key or b"", version, at))
    return {"kind": kind, "key": shown, "value": None if value is None else _value(value_message, value)}


def _value(message: type[Message], value: bytes) -> Decoded:
    version, at = _version(value)
    if not facts(message).min <= version <= facts(message).max:
        raise MalformedError(f"{message.__name__} of version {version}")
    shown: Decoded = {"version": version, **_plain(decode(message, value, version, at), version)}
    if message is TransactionLogValue:
        status = shown["transaction_status"]
        shown["transaction_status"] = _STATES[status] if 0 <= status < len(_STATES) else status
    elif shown.get("protocol_type") == "consumer":
        for member in shown["members"]:
            member["subscription"] = _of_consumer(ConsumerProtocolSubscription, member["subscription"])
            member["assignment"] = _of_consumer(ConsumerProtocolAssignment, member["assignment"])
    return shown


def _of_consumer(message: type[Message], encoded: str) -> Decoded | str:
    """What a consumer told the group, or the bytes when that is not how consumers write it."""
    data = base64.b64decode(encoded)
    try:
        version, at = _version(data)
        if version < 0:
            return encoded
        version = min(version, facts(message).max)
        return {"version": version, **_plain(decode(message, data, version, at), version)}
    except MalformedError:
        return encoded


def _version(data: bytes | None) -> tuple[int, int]:
    if data is None or len(data) < 2:
        raise MalformedError(f"a record's key or value of {len(data or b'')} bytes")
    return int.from_bytes(data[:2], "big", signed=True), 2


def _plain(found: Struct, version: int | None = None) -> Decoded:
    """A struct as JSON has it: the fields of the version, bytes as base64."""
    rows = type(found).__rows__.items()
    return {
        name: encode_topic_id(getattr(found, name)) if row.type == "uuid" else _json(getattr(found, name), version)
        for name, row in rows
        if version is None or row.is_in(version)
    }


def _json(value: Any, version: int | None) -> Any:
    if isinstance(value, Struct):
        return _plain(value, version)
    if isinstance(value, list):
        return [_json(item, version) for item in value]
    if isinstance(value, bytes | bytearray | memoryview):
        return base64.b64encode(value).decode()
    return value
