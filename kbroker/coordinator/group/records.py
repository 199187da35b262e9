"""What a group leaves in the log: the durable values, as they are applied and loaded.

Their bytes are in coordinator/offsets_records.py. A tombstone removes what the same key had.
"""

from dataclasses import dataclass

NO_EPOCH = -1
NO_TIMESTAMP = -1
ZERO_TOPIC_ID = bytes(16)


@dataclass(slots=True, frozen=True, kw_only=True)
class MemberRecord:
    """One member of a generation. Timeouts in ms; `subscription` is its metadata for the chosen protocol."""

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
    """A generation whose assignment is settled, or an empty group.

    `protocol_type` is "" for a group that never had a member. `state_timestamp_ms` is wall clock; -1 in
    records of old brokers.
    """

    group_id: str
    protocol_type: str
    generation: int
    protocol: str | None
    leader: str | None
    state_timestamp_ms: int
    members: tuple[MemberRecord, ...] = ()


@dataclass(slots=True, frozen=True)
class GroupTombstone:
    group_id: str


@dataclass(slots=True, frozen=True)
class OffsetKey:
    group_id: str
    topic: str
    partition: int


@dataclass(slots=True, frozen=True)
class OffsetAndMetadata:
    """A committed position. `commit_ms` and `expire_ms` are wall clock; without `expire_ms` (-1) the broker's
    retention holds.

    `topic_id` is zero when the commit did not know it (KIP-848 clients and brokers since 4.1 store it).
    """

    offset: int
    leader_epoch: int = NO_EPOCH
    metadata: str = ""
    commit_ms: int = NO_TIMESTAMP
    expire_ms: int = NO_TIMESTAMP
    topic_id: bytes = ZERO_TOPIC_ID


@dataclass(slots=True, frozen=True)
class OffsetRecord:
    """`value` None is a tombstone."""

    key: OffsetKey
    value: OffsetAndMetadata | None


Record = GroupRecord | GroupTombstone | OffsetRecord
