"""Who may commit offsets, within transactions or not, and delete them."""

from kbroker.common import KafkaError
from kbroker.coordinator.group.classic.classic_group import ClassicGroup
from kbroker.coordinator.group.classic.group_state import GroupState
from kbroker.coordinator.group.classic.requests import UNKNOWN_MEMBER, Now
from protocol.errors import ErrorCode


def check_commit(
    group: ClassicGroup | None, member_id: str, instance_id: str | None, generation: int, now: Now
) -> None:
    """Raise KafkaError unless the commit may be written; a member's commit also counts as its heartbeat.

    Generation -1 is a simple consumer or an administrator: allowed while the group has no members.
    """
    if group is None:
        if generation >= 0:
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND)
        return
    if generation < 0 and group.state is GroupState.EMPTY:
        return
    if generation < 0 and member_id == UNKNOWN_MEMBER and instance_id is None:
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
    member = group.check_member(member_id, instance_id)
    if generation != group.generation:
        raise KafkaError(ErrorCode.ILLEGAL_GENERATION)
    if group.state is GroupState.COMPLETING_REBALANCE:
        # The member knows the new generation but has no assignment in it yet.
        raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS)
    group.keep_session(member, now.mono_ms)


def check_commit_in_transaction(
    group: ClassicGroup | None, member_id: str, instance_id: str | None, generation: int
) -> None:
    """Raise KafkaError unless a transaction may write offsets of the group (KIP-447).

    Other than with an ordinary commit, clients may not know their member and generation (versions before 3), a
    rebalance does not keep out who is of the generation, and it is no heartbeat.
    """
    if group is None:
        if generation >= 0:
            raise KafkaError(ErrorCode.ILLEGAL_GENERATION)
        return
    if generation < 0 and group.state is GroupState.EMPTY:
        return
    if generation < 0 and member_id == UNKNOWN_MEMBER and instance_id is None:
        return
    group.check_member(member_id, instance_id)
    if generation != group.generation:
        raise KafkaError(ErrorCode.ILLEGAL_GENERATION)


def check_offset_delete(group: ClassicGroup | None) -> ClassicGroup:
    """Raise KafkaError unless offsets may be deleted. Topics that are subscribed to are refused one by one."""
    if group is None:
        raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND)
    if group.state is not GroupState.EMPTY and not group.is_consumer_group():
        raise KafkaError(ErrorCode.NON_EMPTY_GROUP)
    return group


def check_group_delete(group: ClassicGroup | None) -> ClassicGroup:
    if group is None:
        raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND)
    if group.state is not GroupState.EMPTY:
        raise KafkaError(ErrorCode.NON_EMPTY_GROUP)
    return group
