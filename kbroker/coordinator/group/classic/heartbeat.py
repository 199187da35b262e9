"""Heartbeats, and the deadlines that pass without them."""

from kbroker.common import KafkaError
from kbroker.config import BrokerConfig
from kbroker.coordinator.group.classic.classic_group import JOIN_DEADLINE, SYNC_DEADLINE, ClassicGroup
from kbroker.coordinator.group.classic.group_state import GroupState
from kbroker.coordinator.group.classic.leave import remove_member
from kbroker.coordinator.group.classic.rebalance import complete_join, on_join_deadline, rebalance
from kbroker.coordinator.group.classic.requests import Now, PendingRecord
from kbroker.coordinator.group.classic.sync import on_sync_deadline
from protocol.errors import ErrorCode


def heartbeat(group: ClassicGroup, member_id: str, instance_id: str | None, generation: int, now: Now) -> ErrorCode:
    """Restart the session of a member. REBALANCE_IN_PROGRESS makes it join again."""
    try:
        member = group.validate_member(member_id, instance_id)
    except KafkaError as error:
        return error.code
    if generation != group.generation:
        return ErrorCode.ILLEGAL_GENERATION
    group.restart_session(member, now.mono_ms)
    if group.state is GroupState.PREPARING_REBALANCE:
        return ErrorCode.REBALANCE_IN_PROGRESS
    return ErrorCode.NONE


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
