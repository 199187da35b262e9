"""The rebalance: prepare it, wait for members to join, and complete it with a new generation.

Functions return the record that has to be committed next, or None.
"""

from kbroker.config import BrokerConfig
from kbroker.coordinator.group.classic.classic_group import JOIN_DEADLINE, SYNC_DEADLINE, ClassicGroup
from kbroker.coordinator.group.classic.group_state import GroupState
from kbroker.coordinator.group.classic.requests import JoinResponse, Now, PendingRecord, SyncResponse
from protocol.errors import ErrorCode


def rebalance(group: ClassicGroup, now: Now, config: BrokerConfig) -> PendingRecord | None:
    """Start a rebalance, or complete the one in progress if all members have joined."""
    if group.can_rebalance():
        return prepare_rebalance(group, now, config)
    return maybe_complete_join(group, now)


def prepare_rebalance(group: ClassicGroup, now: Now, config: BrokerConfig) -> PendingRecord | None:
    """Make every member join again.

    The first rebalance of an empty group waits group.initial.rebalance.delay.ms for more members.
    """
    if group.state is GroupState.COMPLETING_REBALANCE:
        reset_assignments_with_error(group, ErrorCode.REBALANCE_IN_PROGRESS, now)
    group.pending_sync_members.clear()
    group.deadlines.cancel(SYNC_DEADLINE)
    is_initial = group.state is GroupState.EMPTY
    group.transition_to(GroupState.PREPARING_REBALANCE)
    if is_initial:
        delay_ms = config.group_initial_rebalance_delay_ms
        _delay_join(group, delay_ms, max(group.rebalance_timeout_ms() - delay_ms, 0), now)
        return None
    group.initial_delay_ms = None
    if group.have_all_members_joined():
        return complete_join(group, now)
    group.deadlines.set(JOIN_DEADLINE, now.mono_ms + group.rebalance_timeout_ms())
    return None


def _delay_join(group: ClassicGroup, delay_ms: int, remaining_ms: int, now: Now) -> None:
    group.initial_delay_ms = (delay_ms, remaining_ms)
    group.deadlines.set(JOIN_DEADLINE, now.mono_ms + delay_ms)


def maybe_complete_join(group: ClassicGroup, now: Now) -> PendingRecord | None:
    """Complete the rebalance in progress if all members have joined. An initial delay is never cut short."""
    is_preparing = group.state is GroupState.PREPARING_REBALANCE and group.initial_delay_ms is None
    return complete_join(group, now) if is_preparing and group.have_all_members_joined() else None


def on_join_deadline(group: ClassicGroup, now: Now, config: BrokerConfig) -> PendingRecord | None:
    """Called when the rebalance timeout or the initial delay has passed. New members extend the initial delay."""
    if group.initial_delay_ms is not None and group.new_member_added:
        delay_ms, remaining_ms = group.initial_delay_ms
        if remaining_ms > 0:
            group.new_member_added = False
            next_ms = min(config.group_initial_rebalance_delay_ms, remaining_ms)
            _delay_join(group, next_ms, max(remaining_ms - delay_ms, 0), now)
            return None
    return complete_join(group, now)


def complete_join(group: ClassicGroup, now: Now) -> PendingRecord | None:
    """End the join phase. Removes members that have not joined, except static ones, until their sessions expire."""
    group.deadlines.cancel(JOIN_DEADLINE)
    for member in list(group.members.values()):
        if member.awaiting_join is None and member.instance_id is None:
            group.remove_member(member.member_id)
    if group.members and not _elect_joined_leader(group):
        # Only static members are left, and none has joined: wait until one does, or their sessions expire.
        group.deadlines.set(JOIN_DEADLINE, now.mono_ms + group.rebalance_timeout_ms())
        return None
    group.initial_delay_ms, group.new_member_added = None, False
    group.generation += 1
    group.pending_sync_members.clear()
    if not group.members:
        return _become_empty(group, now)
    group.protocol = group.select_protocol()
    group.subscribed_topics = group.compute_subscribed_topics()
    group.transition_to(GroupState.COMPLETING_REBALANCE)
    _respond_to_joins(group, now)
    group.deadlines.set(SYNC_DEADLINE, now.mono_ms + group.rebalance_timeout_ms())
    return None


def _elect_joined_leader(group: ClassicGroup) -> bool:
    """Keep the leader if it has joined, else elect the first member that has. Returns whether any member has."""
    leader = group.members.get(group.leader_id or "")
    if leader is not None and leader.awaiting_join is not None:
        return True
    joined = next((member for member in group.members.values() if member.awaiting_join is not None), None)
    if joined is not None:
        group.leader_id = joined.member_id
    return joined is not None


def _become_empty(group: ClassicGroup, now: Now) -> PendingRecord:
    group.protocol = None
    group.subscribed_topics = group.compute_subscribed_topics()
    group.transition_to(GroupState.EMPTY)
    return PendingRecord(group.record(now.wall_ms))


def _respond_to_joins(group: ClassicGroup, now: Now) -> None:
    for member in list(group.members.values()):
        group.respond_to_join(member, join_response(group, member.member_id))
        group.restart_session(member, now.mono_ms)
        member.is_new = False
        group.pending_sync_members.add(member.member_id)


def join_response(group: ClassicGroup, member_id: str) -> JoinResponse:
    """Return the response with the current generation; the leader gets the members."""
    is_leader = group.leader_id == member_id
    return JoinResponse(
        member_id=member_id,
        generation=group.generation,
        protocol_type=group.protocol_type,
        protocol=group.protocol,
        leader_id=group.leader_id or "",
        members=tuple(member.in_join_response(group.protocol) for member in group.members.values() if is_leader),
    )


def reset_assignments_with_error(group: ClassicGroup, error: ErrorCode, now: Now) -> None:
    """Discard the assignments of this generation, and fail the waiting SyncGroup requests."""
    for member in group.members.values():
        member.assignment = b""
        if group.respond_to_sync(member, SyncResponse(error)):
            group.restart_session(member, now.mono_ms)
