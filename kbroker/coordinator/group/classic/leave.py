"""LeaveGroup: removes members from a group."""

from kbroker.common import KafkaError
from kbroker.config import BrokerConfig
from kbroker.coordinator.group.classic.classic_group import ClassicGroup
from kbroker.coordinator.group.classic.group_state import GroupState
from kbroker.coordinator.group.classic.rebalance import maybe_complete_join, rebalance
from kbroker.coordinator.group.classic.requests import (
    UNKNOWN_MEMBER_ID,
    JoinResponse,
    LeavingMember,
    Now,
    PendingRecord,
    SyncResponse,
)
from protocol.errors import ErrorCode


def leave_group(
    group: ClassicGroup, members: list[LeavingMember], now: Now, config: BrokerConfig
) -> tuple[list[ErrorCode], PendingRecord | None]:
    """Remove members, each with its own result, and start one rebalance for all of them."""
    errors = [_leave(group, member) for member in members]
    if ErrorCode.NONE not in errors or group.state is GroupState.EMPTY:
        return errors, None
    if group.state is GroupState.PREPARING_REBALANCE:
        return errors, maybe_complete_join(group, now)
    return errors, rebalance(group, now, config)


def _leave(group: ClassicGroup, leaving: LeavingMember) -> ErrorCode:
    member_id = leaving.member_id
    if member_id == UNKNOWN_MEMBER_ID:
        # Only the instance id is set: administration tools do not know the member id.
        member_id = group.static_members.get(leaving.instance_id or "", UNKNOWN_MEMBER_ID)
        if leaving.instance_id is None or member_id == UNKNOWN_MEMBER_ID:
            return ErrorCode.UNKNOWN_MEMBER_ID
    elif member_id not in group.pending_join_members:
        try:
            group.validate_member(member_id, leaving.instance_id)
        except KafkaError as error:
            return error.code
    remove_member(group, member_id)
    return ErrorCode.NONE


def remove_member(group: ClassicGroup, member_id: str) -> None:
    """Remove a member, and fail its waiting request. If the client is alive, it joins again with a new id."""
    member = group.members.get(member_id)
    if member is not None:
        group.respond_to_join(member, JoinResponse(ErrorCode.UNKNOWN_MEMBER_ID))
        group.respond_to_sync(member, SyncResponse(ErrorCode.UNKNOWN_MEMBER_ID))
    group.remove_member(member_id)
