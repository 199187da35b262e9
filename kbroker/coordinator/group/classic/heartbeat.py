"""Heartbeats, members that leave, and the deadlines that pass without them."""

from kbroker.common import KafkaError
from kbroker.config import BrokerConfig
from kbroker.coordinator.group.classic.classic_group import JOIN_DEADLINE, SYNC_DEADLINE, ClassicGroup, GroupState
from kbroker.coordinator.group.classic.classic_group_member import UNKNOWN_MEMBER_ID
from kbroker.coordinator.group.classic.rebalance import (
    complete_join,
    join_error,
    maybe_complete_join,
    on_join_deadline,
    on_sync_deadline,
    rebalance,
)
from kbroker.coordinator.group.classic.records import PendingRecord
from kbroker.coordinator.group.group import Now
from kbroker.runtime.turns import paced
from protocol.errors import ErrorCode
from protocol.messages.k11_classic_groups import MemberIdentity, SyncGroupResponse


def heartbeat(group: ClassicGroup, member_id: str, instance_id: str | None, generation: int, now_ms: int) -> ErrorCode:
    """Restart the session of a member. REBALANCE_IN_PROGRESS makes it join again."""
    try:
        member = group.validate_member(member_id, instance_id)
    except KafkaError as error:
        return error.code
    if generation != group.generation:
        return ErrorCode.ILLEGAL_GENERATION
    group.restart_session(member, now_ms)
    if group.state is GroupState.PREPARING_REBALANCE:
        return ErrorCode.REBALANCE_IN_PROGRESS
    return ErrorCode.NONE


def leave_group(
    group: ClassicGroup, members: list[MemberIdentity], now: Now, config: BrokerConfig
) -> tuple[list[ErrorCode], PendingRecord | None]:
    """Remove members, each with its own result, and start one rebalance for all of them."""
    errors = [_leave(group, member) for member in paced(members)]
    if ErrorCode.NONE not in errors or group.state is GroupState.EMPTY:
        return errors, None
    if group.state is GroupState.PREPARING_REBALANCE:
        return errors, maybe_complete_join(group, now)
    return errors, rebalance(group, now, config)


def _leave(group: ClassicGroup, leaving: MemberIdentity) -> ErrorCode:
    member_id = leaving.member_id
    if member_id == UNKNOWN_MEMBER_ID:
        # Only the instance id is set: administration tools do not know the member id.
        member_id = group.static_members.get(leaving.group_instance_id or "", UNKNOWN_MEMBER_ID)
        if leaving.group_instance_id is None or member_id == UNKNOWN_MEMBER_ID:
            return ErrorCode.UNKNOWN_MEMBER_ID
    elif member_id not in group.pending_join_members:
        try:
            group.validate_member(member_id, leaving.group_instance_id)
        except KafkaError as error:
            return error.code
    remove_member(group, member_id)
    return ErrorCode.NONE


def remove_member(group: ClassicGroup, member_id: str) -> None:
    """Remove a member, and fail its waiting request. If the client is alive, it joins again with a new id."""
    member = group.members.get(member_id)
    if member is not None:
        group.respond_to_join(member, join_error(ErrorCode.UNKNOWN_MEMBER_ID))
        group.respond_to_sync(member, SyncGroupResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID))
    group.remove_member(member_id)


def expire_deadline(group: ClassicGroup, now: Now, config: BrokerConfig) -> PendingRecord | None:
    """Act on the earliest deadline that has passed, if one has."""
    expired = group.deadlines.pop_due(now.mono_ms)
    if expired is None:
        return None
    if expired == JOIN_DEADLINE:
        return on_join_deadline(group, now, config)
    if expired == SYNC_DEADLINE:
        return on_sync_deadline(group, now, config)
    return _expire_session(group, expired[1], now, config)


def _expire_session(group: ClassicGroup, member_id: str, now: Now, config: BrokerConfig) -> PendingRecord | None:
    member = group.members.get(member_id)
    if member is not None and not member.is_new and member.has_waiting_request:
        # The response restarts the session.
        return None
    remove_member(group, member_id)
    if group.state is GroupState.PREPARING_REBALANCE:
        return complete_join(group, now) if group.have_all_members_joined() else None
    if member is None or group.state is GroupState.EMPTY:
        return None
    return rebalance(group, now, config)
