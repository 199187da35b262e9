"""The records of classic groups: their values, their bytes as Apache Kafka 4.3 writes and reads them, their replay."""

from dataclasses import dataclass
from typing import NamedTuple

from kbroker.coordinator.group.records import EncodedRecord, RecordCodec, decode_key, decode_value, encode_with_version
from protocol.messages.group_records import GroupMetadataKey, GroupMetadataMember, GroupMetadataValue

GROUP_METADATA_KEY_VERSION = 2
GROUP_METADATA_VALUE_VERSION = 3


@dataclass(slots=True, frozen=True, kw_only=True)
class MemberRecord:
    """A member of a generation. `subscription` is its metadata for the selected protocol."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes


@dataclass(slots=True, frozen=True, kw_only=True)
class GroupRecord:
    """A generation with its assignment, or an empty group.

    `protocol_type` is "" for a group that never had a member. `state_timestamp_ms` is wall clock; -1 in records of old
    brokers.
    """

    group_id: str
    protocol_type: str
    generation: int
    protocol: str | None
    leader_id: str | None
    state_timestamp_ms: int
    members: tuple[MemberRecord, ...] = ()


class GroupTombstone(NamedTuple):
    """The record of a deleted group."""

    group_id: str


ClassicGroupRecord = GroupRecord | GroupTombstone


def _encode_record(record: ClassicGroupRecord) -> EncodedRecord:
    key = encode_with_version(GroupMetadataKey(group=record.group_id), GROUP_METADATA_KEY_VERSION)
    return key, None if isinstance(record, GroupTombstone) else _encode_group(record)


def _decode_record(version: int, key: bytes, value: bytes | None) -> ClassicGroupRecord:
    group_id = decode_key(GroupMetadataKey, version, key).group
    return GroupTombstone(group_id) if value is None else _decode_group(group_id, value)


def _encode_group(record: GroupRecord) -> bytes:
    message = GroupMetadataValue(
        protocol_type=record.protocol_type,
        generation=record.generation,
        protocol=record.protocol,
        leader=record.leader_id,
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
    return encode_with_version(message, GROUP_METADATA_VALUE_VERSION)


def _decode_group(group_id: str, value: bytes) -> GroupRecord:
    decoded = decode_value(GroupMetadataValue, value)
    return GroupRecord(
        group_id=group_id,
        protocol_type=decoded.protocol_type,
        generation=decoded.generation,
        protocol=decoded.protocol,
        leader_id=decoded.leader,
        state_timestamp_ms=decoded.current_state_timestamp,
        members=tuple(_decode_member(member) for member in decoded.members),
    )


def _decode_member(member: GroupMetadataMember) -> MemberRecord:
    # Version 0 has no rebalance timeout: the session timeout was used for both.
    rebalance_timeout_ms = member.rebalance_timeout if member.rebalance_timeout != -1 else member.session_timeout
    return MemberRecord(
        member_id=member.member_id,
        instance_id=member.group_instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        rebalance_timeout_ms=rebalance_timeout_ms,
        session_timeout_ms=member.session_timeout,
        subscription=member.subscription,
        assignment=member.assignment,
    )


CODEC = RecordCodec((GROUP_METADATA_KEY_VERSION,), (GroupRecord, GroupTombstone), _encode_record, _decode_record)
