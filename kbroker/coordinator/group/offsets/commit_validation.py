"""Decides whether offsets may be committed or deleted, and whether a group may be deleted."""

from kbroker.common import KafkaError
from kbroker.coordinator.group.classic.classic_group import ClassicGroup
from kbroker.coordinator.group.classic.classic_group_member import ClassicGroupMember
from kbroker.coordinator.group.classic.group_state import GroupState
from kbroker.coordinator.group.classic.requests import UNKNOWN_MEMBER_ID
from protocol.errors import ErrorCode


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
