"""Decides whether offsets may be committed or deleted, and whether a group may be deleted."""

from collections.abc import Iterable

from kbroker.common import KafkaError
from kbroker.coordinator.group.classic.classic_group import ClassicGroup
from kbroker.coordinator.group.classic.classic_group_member import ClassicGroupMember
from kbroker.coordinator.group.classic.group_state import GroupState
from kbroker.coordinator.group.classic.requests import UNKNOWN_MEMBER_ID
from kbroker.coordinator.group.records import OffsetRecord
from protocol.errors import ErrorCode

# A record in a batch without its texts: 7 bytes, 10 of the key, and 24 of the value.
MIN_RECORD_BYTES = 41


def validate_offset_commit(
    group: ClassicGroup | None, member_id: str, instance_id: str | None, generation: int
) -> ClassicGroupMember | None:
    """Return the member that commits, None for a commit without one. Raises KafkaError if that is not allowed.

    Generation -1 comes from a simple consumer or a tool, which may commit while the group has no members.
    """
    if group is None:
        if generation >= 0:
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND)
        return None
    if generation < 0 and group.state is GroupState.EMPTY:
        return None
    if generation < 0 and member_id == UNKNOWN_MEMBER_ID and instance_id is None:
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
    member = group.validate_member(member_id, instance_id)
    if generation != group.generation:
        raise KafkaError(ErrorCode.ILLEGAL_GENERATION)
    if group.state is GroupState.COMPLETING_REBALANCE:
        # The member knows the new generation but has no assignment in it yet.
        raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS)
    return member


def validate_transactional_offset_commit(
    group: ClassicGroup | None, member_id: str, instance_id: str | None, generation: int
) -> None:
    """Raise KafkaError unless the offsets may be committed in a transaction (KIP-447).

    It differs from an ordinary commit: clients may not know their member id and generation (versions before 3), a
    member of the generation may commit during a rebalance, and the commit does not count as a heartbeat.
    """
    if group is None:
        if generation >= 0:
            raise KafkaError(ErrorCode.ILLEGAL_GENERATION)
        return
    if generation < 0 and group.state is GroupState.EMPTY:
        return
    if generation < 0 and member_id == UNKNOWN_MEMBER_ID and instance_id is None:
        return
    group.validate_member(member_id, instance_id)
    if generation != group.generation:
        raise KafkaError(ErrorCode.ILLEGAL_GENERATION)


def validate_offset_delete(group: ClassicGroup | None) -> ClassicGroup:
    """Return the group. Raises KafkaError unless its offsets may be deleted, except those of subscribed topics."""
    if group is None:
        raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND)
    if group.state is not GroupState.EMPTY and not group.uses_consumer_protocol():
        raise KafkaError(ErrorCode.NON_EMPTY_GROUP)
    return group


def validate_delete_group(group: ClassicGroup | None) -> None:
    if group is None:
        raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND)
    if group.state is not GroupState.EMPTY:
        raise KafkaError(ErrorCode.NON_EMPTY_GROUP)


def validate_commit_size(offsets: Iterable[OffsetRecord], max_bytes: int | None) -> None:
    """Raise KafkaError if the records of a commit do not fit into a batch, before they are encoded.

    As in Kafka, all of them are in one batch. Only the sizes of their texts and a lower bound of the rest are added.
    """
    if max_bytes is None:
        return
    size = 0
    for key, offset in offsets:
        size += MIN_RECORD_BYTES + len(key.group_id) + len(key.topic) + (len(offset.metadata) if offset else 0)
        if size > max_bytes:
            raise KafkaError(ErrorCode.INVALID_COMMIT_OFFSET_SIZE)
