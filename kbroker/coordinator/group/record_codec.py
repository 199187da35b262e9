"""The bytes of group records in __consumer_offsets, as Apache Kafka 4.3 writes and reads them."""

from struct import Struct

from kbroker.coordinator.group.records import (
    NO_TIMESTAMP,
    GroupRecord,
    GroupTombstone,
    MemberRecord,
    OffsetAndMetadata,
    OffsetKey,
    OffsetRecord,
    Record,
)
from protocol.errors import MalformedError
from protocol.messages.group_records import (
    GroupMetadataKey,
    GroupMetadataMember,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
)
from protocol.schema.codec import decode, encode
from protocol.schema.message import Message, message_info

OFFSET_KEY_VERSIONS = (0, 1)
OFFSET_KEY_VERSION = 1
OFFSET_VALUE_VERSION = 4
GROUP_KEY_VERSION = 2
GROUP_VALUE_VERSION = 3

_VERSION = Struct(">h")


def encode_record(record: Record) -> tuple[bytes, bytes | None]:
    """The key and value to append; a tombstone's value is None."""
    if isinstance(record, OffsetRecord):
        return _offset_key(record.key), None if record.value is None else _offset_value(record.value)
    key = _versioned(GroupMetadataKey(group=record.group_id), GROUP_KEY_VERSION)
    return key, None if isinstance(record, GroupTombstone) else _group_value(record)


def decode_record(key: bytes | None, value: bytes | None) -> Record | None:
    """What a record of the log says; None for kinds that this broker does not know (groups of newer types).

    Raises MalformedError for bytes that no Kafka wrote.
    """
    if key is None:
        return None
    kind = _version(key)
    if kind in OFFSET_KEY_VERSIONS:
        found = decode(OffsetCommitKey, key, kind, _VERSION.size)
        offset_key = OffsetKey(found.group, found.topic, found.partition)
        return OffsetRecord(offset_key, None if value is None else _read_offset(value))
    if kind == GROUP_KEY_VERSION:
        group_id = decode(GroupMetadataKey, key, kind, _VERSION.size).group
        return GroupTombstone(group_id) if value is None else _read_group(group_id, value)
    return None


def _versioned(message: Message, version: int) -> bytes:
    return _VERSION.pack(version) + encode(message, version)


def _version(buf: bytes) -> int:
    if len(buf) < _VERSION.size:
        raise MalformedError(f"a record's key or value of {len(buf)} bytes")
    version: int = _VERSION.unpack_from(buf)[0]
    return version


def _known_version(value: bytes, message: type[Message]) -> int:
    version = _version(value)
    if not message_info(message).min_version <= version <= message_info(message).max_version:
        raise MalformedError(f"{message.__name__} version {version}")
    return version


def _offset_key(key: OffsetKey) -> bytes:
    message = OffsetCommitKey(group=key.group_id, topic=key.topic, partition=key.partition)
    return _versioned(message, OFFSET_KEY_VERSION)


def _offset_value(offset: OffsetAndMetadata) -> bytes:
    message = OffsetCommitValue(
        offset=offset.offset,
        leader_epoch=offset.leader_epoch,
        metadata=offset.metadata,
        commit_timestamp=offset.commit_ms,
        expire_timestamp=offset.expire_ms,
        topic_id=offset.topic_id,
    )
    # Only version 1 has a time to expire.
    return _versioned(message, OFFSET_VALUE_VERSION if offset.expire_ms == NO_TIMESTAMP else 1)


def _read_offset(value: bytes) -> OffsetAndMetadata:
    found = decode(OffsetCommitValue, value, _known_version(value, OffsetCommitValue), _VERSION.size)
    return OffsetAndMetadata(
        offset=found.offset,
        leader_epoch=found.leader_epoch,
        metadata=found.metadata,
        commit_ms=found.commit_timestamp,
        expire_ms=found.expire_timestamp,
        topic_id=found.topic_id,
    )


def _group_value(record: GroupRecord) -> bytes:
    message = GroupMetadataValue(
        protocol_type=record.protocol_type,
        generation=record.generation,
        protocol=record.protocol,
        leader=record.leader,
        current_state_timestamp=record.state_timestamp_ms,
        members=[
            GroupMetadataMember(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                rebalance_timeout=member.rebalance_timeout_ms,
                session_timeout=member.session_timeout_ms,
                subscription=member.subscription,
                assignment=member.assignment,
            )
            for member in record.members
        ],
    )
    return _versioned(message, GROUP_VALUE_VERSION)


def _read_group(group_id: str, value: bytes) -> GroupRecord:
    found = decode(GroupMetadataValue, value, _known_version(value, GroupMetadataValue), _VERSION.size)
    return GroupRecord(
        group_id=group_id,
        protocol_type=found.protocol_type,
        generation=found.generation,
        protocol=found.protocol,
        leader=found.leader,
        state_timestamp_ms=found.current_state_timestamp,
        members=tuple(_read_member(member) for member in found.members),
    )


def _read_member(found: GroupMetadataMember) -> MemberRecord:
    # Version 0 knew the session timeout only, which was the rebalance timeout too.
    rebalance_timeout_ms = found.rebalance_timeout if found.rebalance_timeout != -1 else found.session_timeout
    return MemberRecord(
        member_id=found.member_id,
        instance_id=found.group_instance_id,
        client_id=found.client_id,
        client_host=found.client_host,
        rebalance_timeout_ms=rebalance_timeout_ms,
        session_timeout_ms=found.session_timeout,
        subscription=found.subscription,
        assignment=found.assignment,
    )
