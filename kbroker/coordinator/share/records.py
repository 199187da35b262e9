"""The records of __share_group_state, with the bytes that Apache Kafka 4.4 writes and reads.

A snapshot has the whole state of a share partition, an update what a write has changed since the snapshot with the same
epoch. A tombstone of the snapshot deletes the state.
"""

from collections.abc import Iterable
from struct import Struct
from typing import Any, NamedTuple

from kbroker.coordinator.share.share_partition_state import SharePartitionKey, StateBatch
from protocol.errors import MalformedError
from protocol.messages.k83_share_state import ShareStateBatch
from protocol.messages.share_state_records import ShareSnapshotKey, ShareSnapshotValue, ShareUpdateKey, ShareUpdateValue
from protocol.schema.codec import decode, encode
from protocol.schema.message import Message

SNAPSHOT, UPDATE = 0, 1
VALUE_VERSION = 0
_VERSION = Struct(">h")


class ShareSnapshot(NamedTuple):
    """The state of a share partition. Snapshot epochs count the snapshots of the partition.

    The times are wall clock. They differ in a snapshot without changes, of a partition that was not written to for
    long.
    """

    key: SharePartitionKey
    snapshot_epoch: int
    state_epoch: int
    leader_epoch: int
    start_offset: int
    delivery_complete_count: int
    create_ms: int
    write_ms: int
    batches: tuple[StateBatch, ...] = ()


class ShareUpdate(NamedTuple):
    """A change of the snapshot with the same epoch: changed ranges, and the new values of the other fields."""

    key: SharePartitionKey
    snapshot_epoch: int
    leader_epoch: int
    start_offset: int
    delivery_complete_count: int
    batches: tuple[StateBatch, ...] = ()


class ShareTombstone(NamedTuple):
    key: SharePartitionKey


ShareRecord = ShareSnapshot | ShareUpdate | ShareTombstone


def encode_record(record: ShareRecord) -> tuple[bytes, bytes | None]:
    """Return the key and the value of a record; the value of a tombstone is None."""
    if isinstance(record, ShareTombstone):
        return _key(ShareSnapshotKey, SNAPSHOT, record.key), None
    batches = encode_batches(record.batches)
    if isinstance(record, ShareUpdate):
        update = ShareUpdateValue(
            snapshot_epoch=record.snapshot_epoch,
            leader_epoch=record.leader_epoch,
            start_offset=record.start_offset,
            delivery_complete_count=record.delivery_complete_count,
            state_batches=batches,
        )
        return _key(ShareUpdateKey, UPDATE, record.key), _value(update)
    snapshot = ShareSnapshotValue(
        snapshot_epoch=record.snapshot_epoch,
        state_epoch=record.state_epoch,
        leader_epoch=record.leader_epoch,
        start_offset=record.start_offset,
        delivery_complete_count=record.delivery_complete_count,
        create_timestamp=record.create_ms,
        write_timestamp=record.write_ms,
        state_batches=batches,
    )
    return _key(ShareSnapshotKey, SNAPSHOT, record.key), _value(snapshot)


def decode_record(key: bytes | None, value: bytes | None) -> ShareRecord | None:
    """Return the record; None for a type that this broker does not know. Raises MalformedError."""
    kind = None if key is None else _version(key)
    if key is None or kind not in (SNAPSHOT, UPDATE):
        return None
    decoded: Any = decode(ShareSnapshotKey if kind == SNAPSHOT else ShareUpdateKey, key, kind, _VERSION.size)
    partition = SharePartitionKey(decoded.group_id, decoded.topic_id, decoded.partition)
    if value is None:
        # Kafka writes no tombstone of an update.
        return ShareTombstone(partition) if kind == SNAPSHOT else None
    if _version(value) != VALUE_VERSION:
        raise MalformedError(f"the value of a share partition has version {_version(value)}")
    if kind == UPDATE:
        update = decode(ShareUpdateValue, value, VALUE_VERSION, _VERSION.size)
        return ShareUpdate(
            partition,
            update.snapshot_epoch,
            update.leader_epoch,
            update.start_offset,
            update.delivery_complete_count,
            decode_batches(update.state_batches),
        )
    snapshot = decode(ShareSnapshotValue, value, VALUE_VERSION, _VERSION.size)
    return ShareSnapshot(
        partition,
        snapshot.snapshot_epoch,
        snapshot.state_epoch,
        snapshot.leader_epoch,
        snapshot.start_offset,
        snapshot.delivery_complete_count,
        snapshot.create_timestamp,
        snapshot.write_timestamp,
        decode_batches(snapshot.state_batches),
    )


def encode_batches(batches: Iterable[StateBatch]) -> list[ShareStateBatch]:
    """Return ranges as structs of requests, responses and records."""
    return [
        ShareStateBatch(first_offset=first, last_offset=last, delivery_state=state, delivery_count=count, due_ms=due_ms)
        for first, last, state, count, due_ms in batches
    ]


def decode_batches(batches: Iterable[ShareStateBatch]) -> tuple[StateBatch, ...]:
    return tuple(
        [
            StateBatch(batch.first_offset, batch.last_offset, batch.delivery_state, batch.delivery_count, batch.due_ms)
            for batch in batches
        ]
    )


def _key(message: type[Message], version: int, key: SharePartitionKey) -> bytes:
    return _VERSION.pack(version) + encode(message(**key._asdict()), version)


def _value(message: Message) -> bytes:
    return _VERSION.pack(VALUE_VERSION) + encode(message, VALUE_VERSION)


def _version(buf: bytes) -> int:
    if len(buf) < _VERSION.size:
        raise MalformedError(f"a record's key or value of {len(buf)} bytes")
    version: int = _VERSION.unpack_from(buf)[0]
    return version
