"""How members go: by LeaveGroup, or because a deadline has passed."""

from kbroker.common import KafkaError
from kbroker.coordinator.group.classic.classic_group import JOIN_DEADLINE, SYNC_DEADLINE, ClassicGroup
from kbroker.coordinator.group.classic.group_state import GroupState
from kbroker.coordinator.group.classic.rebalance import complete_join, end_if_all_joined, on_join_deadline, rebalance
from kbroker.coordinator.group.classic.requests import (
    UNKNOWN_MEMBER,
    JoinResponse,
    LeavingMember,
    Now,
    Settings,
    SyncResponse,
    Write,
)
from kbroker.coordinator.group.classic.sync import on_sync_deadline
from protocol.errors import ErrorCode


def leave(
    group: ClassicGroup, leavers: list[LeavingMember], now: Now, settings: Settings
) -> tuple[list[ErrorCode], Write | None]:
    """Let members go, each with its own result; one rebalance for all of them."""
    errors = [_leave(group, leaver) for leaver in leavers]
    if ErrorCode.NONE not in errors:
        return errors, None
    if group.state is GroupState.PREPARING_REBALANCE:
        return errors, end_if_all_joined(group, now)
    if group.state is GroupState.EMPTY:
        return errors, None
    return errors, rebalance(group, now, settings)


def _leave(group: ClassicGroup, leaver: LeavingMember) -> ErrorCode:
    member_id = leaver.member_id
    if member_id == UNKNOWN_MEMBER:
        # By instance id alone: an administrator's tool does not know the member id.
        member_id = group.static.get(leaver.instance_id or "", UNKNOWN_MEMBER)
        if leaver.instance_id is None or member_id == UNKNOWN_MEMBER:
            return ErrorCode.UNKNOWN_MEMBER_ID
    elif member_id not in group.pending_joins:
        try:
            group.check_member(member_id, leaver.instance_id)
        except KafkaError as error:
            return error.code
    _remove(group, member_id)
    return ErrorCode.NONE


def _remove(group: ClassicGroup, member_id: str) -> None:
    member = group.members.get(member_id)
    if member is not None:
        # It may come again when it is still there: with a new id.
        group.answer_join(member, JoinResponse(ErrorCode.UNKNOWN_MEMBER_ID))
        group.answer_sync(member, SyncResponse(ErrorCode.UNKNOWN_MEMBER_ID))
    group.remove(member_id)


def expire_one(group: ClassicGroup, now: Now, settings: Settings) -> Write | None:
    """Act on the earliest deadline that has passed, if one has."""
    due = group.deadlines.pop_due(now.mono_ms)
    if due is None:
        return None
    if due == JOIN_DEADLINE:
        return on_join_deadline(group, now, settings)
    if due == SYNC_DEADLINE:
        return on_sync_deadline(group, now, settings)
    return _session_over(group, due[1], now, settings)


def _session_over(group: ClassicGroup, member_id: str, now: Now, settings: Settings) -> Write | None:
    member = group.members.get(member_id)
    if member is not None and not member.is_new and member.waits():
        # Its session goes on when it is answered.
        return None
    _remove(group, member_id)
    if group.state is GroupState.PREPARING_REBALANCE:
        return complete_join(group, now) if group.all_joined() else None
    if member is None or group.state is GroupState.EMPTY:
        return None
    return rebalance(group, now, settings)
