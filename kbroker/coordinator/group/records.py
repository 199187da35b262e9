"""The records of groups in __consumer_offsets, as values. record_codec.py encodes them."""

from dataclasses import dataclass, field
from typing import NamedTuple

NO_LEADER_EPOCH = -1
NO_TIMESTAMP = -1
NO_RECORD_OFFSET = -1
ZERO_TOPIC_ID = bytes(16)


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


class OffsetKey(NamedTuple):
    group_id: str
    topic: str
    partition: int


@dataclass(slots=True)
class OffsetAndMetadata:
    """A committed offset. Timestamps are wall clock; with `expire_ms` -1 the retention of the broker applies.

    `topic_id` is zero if the commit did not contain it (KIP-848 clients and brokers since 4.1 store it).
    `record_offset` is the offset of the record in __consumer_offsets, set when the record is replayed.
    """

    offset: int
    leader_epoch: int = NO_LEADER_EPOCH
    metadata: str = ""
    commit_ms: int = NO_TIMESTAMP
    expire_ms: int = NO_TIMESTAMP
    topic_id: bytes = ZERO_TOPIC_ID
    record_offset: int = field(default=NO_RECORD_OFFSET, compare=False)


class OffsetRecord(NamedTuple):
    """`value` is None in a tombstone: the offset is deleted, or has expired."""

    key: OffsetKey
    value: OffsetAndMetadata | None


GroupCoordinatorRecord = GroupRecord | GroupTombstone | OffsetRecord
