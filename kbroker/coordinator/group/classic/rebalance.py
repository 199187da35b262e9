"""The rebalance: prepare it, wait for members to join, complete it with a new generation, distribute the assignments.

Functions return the record that has to be committed next, or None. In a large group they take several turns
(runtime/turns.py): no other operation changes the group meanwhile, but its partition may be lost, which makes it Dead.
SyncGroup by the state of the group:

PreparingRebalance   REBALANCE_IN_PROGRESS
CompletingRebalance  waits for the leader's request; its assignment is written, and makes the group Stable
Stable               returns the assignment again
"""

from kbroker.common import KafkaError
from kbroker.config import BrokerConfig
from kbroker.coordinator.group.classic.classic_group import (
    JOIN_DEADLINE,
    SYNC_DEADLINE,
    VALID_PREVIOUS_STATES,
    ClassicGroup,
    GroupState,
)
from kbroker.coordinator.group.classic.classic_group_member import UNKNOWN_MEMBER_ID, RespondToSync
from kbroker.coordinator.group.classic.records import PendingRecord
from kbroker.coordinator.group.group import Now
from kbroker.runtime.turns import paced
from protocol.errors import ErrorCode
from protocol.messages.k11_classic_groups import (
    JoinGroupResponse,
    JoinGroupResponseMember,
    SyncGroupRequest,
    SyncGroupResponse,
)


def rebalance(group: ClassicGroup, now: Now, config: BrokerConfig) -> PendingRecord | None:
    """Start a rebalance, or complete the one in progress if all members have joined."""
    if group.state in VALID_PREVIOUS_STATES[GroupState.PREPARING_REBALANCE]:
        return prepare_rebalance(group, now, config)
    return maybe_complete_join(group, now)


def prepare_rebalance(group: ClassicGroup, now: Now, config: BrokerConfig) -> PendingRecord | None:
    """Make every member join again.

    The first rebalance of an empty group waits group.initial.rebalance.delay.ms for more members.
    """
    if group.state is GroupState.COMPLETING_REBALANCE:
        reset_assignments_with_error(group, ErrorCode.REBALANCE_IN_PROGRESS, now)
        if group.is_dead:
            return None
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
    for member in paced(list(group.members.values())):
        if member.awaiting_join is None and member.instance_id is None:
            group.remove_member(member.member_id)
    if group.members and not _elect_joined_leader(group):
        # Only static members are left, and none has joined: wait until one does, or their sessions expire.
        group.deadlines.set(JOIN_DEADLINE, now.mono_ms + group.rebalance_timeout_ms())
        return None
    protocol = group.select_protocol() if group.members else None
    subscribed_topics = group.compute_subscribed_topics(protocol)
    if group.is_dead:
        return None
    group.initial_delay_ms, group.new_member_added = None, False
    group.generation += 1
    group.protocol, group.subscribed_topics = protocol, subscribed_topics
    group.pending_sync_members.clear()
    if not group.members:
        group.transition_to(GroupState.EMPTY)
        return PendingRecord(group.record(now.wall_ms, {}))
    group.transition_to(GroupState.COMPLETING_REBALANCE)
    group.deadlines.set(SYNC_DEADLINE, now.mono_ms + group.rebalance_timeout_ms())
    for member in paced(list(group.members.values())):
        if group.is_dead:
            break
        group.respond_to_join(member, join_response(group, member.member_id))
        group.restart_session(member, now.mono_ms)
        member.is_new = False
        group.pending_sync_members.add(member.member_id)
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


def join_response(group: ClassicGroup, member_id: str) -> JoinGroupResponse:
    """Return the response with the current generation; the leader gets the members."""
    members = list(group.members.values()) if group.leader_id == member_id else []
    return JoinGroupResponse(
        member_id=member_id,
        generation_id=group.generation,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol,
        leader=group.leader_id or "",
        members=[
            JoinGroupResponseMember(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                metadata=member.metadata(group.protocol),
            )
            for member in paced(members)
        ],
    )


def join_error(error: ErrorCode, member_id: str = UNKNOWN_MEMBER_ID) -> JoinGroupResponse:
    return JoinGroupResponse(error_code=error, member_id=member_id, protocol_name=None)


def reset_assignments_with_error(group: ClassicGroup, error: ErrorCode, now: Now) -> None:
    """Discard the assignments of this generation, and fail the waiting SyncGroup requests."""
    for member in paced(list(group.members.values())):
        member.assignment = b""
        if group.respond_to_sync(member, SyncGroupResponse(error_code=error)):
            group.restart_session(member, now.mono_ms)


# SyncGroup.


def sync_group(
    group: ClassicGroup, request: SyncGroupRequest, respond: RespondToSync, now: Now, config: BrokerConfig
) -> PendingRecord | None:
    """Handle a SyncGroup. `respond` is called now or when the leader's assignment is committed."""
    error = _validate_sync(group, request)
    if error is not ErrorCode.NONE:
        respond(SyncGroupResponse(error_code=error))
        return None
    member = group.members[request.member_id]
    group.pending_sync_members.discard(request.member_id)
    if not group.pending_sync_members:
        group.deadlines.cancel(SYNC_DEADLINE)
    if group.state is GroupState.STABLE:
        respond(_sync_response(group, member.assignment))
        return None
    # The client has abandoned its earlier request, which still waits.
    group.respond_to_sync(member, SyncGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS))
    member.awaiting_sync = respond
    if group.leader_id != request.member_id:
        return None
    assignments = {assigned.member_id: assigned.assignment for assigned in request.assignments}
    return _write_assignments(group, assignments, now, config)


def _validate_sync(group: ClassicGroup, request: SyncGroupRequest) -> ErrorCode:
    try:
        group.validate_member(request.member_id, request.group_instance_id)
    except KafkaError as error:
        return error.code
    if request.generation_id != group.generation:
        return ErrorCode.ILLEGAL_GENERATION
    for requested, selected in ((request.protocol_type, group.protocol_type), (request.protocol_name, group.protocol)):
        if requested is not None and selected is not None and requested != selected:
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    if group.state is GroupState.PREPARING_REBALANCE:
        return ErrorCode.REBALANCE_IN_PROGRESS
    return ErrorCode.NONE


def _write_assignments(
    group: ClassicGroup, assignments: dict[str, bytes], now: Now, config: BrokerConfig
) -> PendingRecord:
    """Store the assignments. Members without an assignment get an empty one."""
    generation = group.generation

    def on_committed(now: Now) -> None:
        for member in paced(list(group.members.values())):
            if group.respond_to_sync(member, _sync_response(group, member.assignment)):
                group.restart_session(member, now.mono_ms)

    def on_failed(error: ErrorCode, now: Now) -> None:
        if group.state is GroupState.COMPLETING_REBALANCE and group.generation == generation:
            reset_assignments_with_error(group, error, now)
            rebalance(group, now, config)

    return PendingRecord(group.record(now.wall_ms, assignments), on_committed, on_failed)


def _sync_response(group: ClassicGroup, assignment: bytes) -> SyncGroupResponse:
    return SyncGroupResponse(protocol_type=group.protocol_type, protocol_name=group.protocol, assignment=assignment)


def on_sync_deadline(group: ClassicGroup, now: Now, config: BrokerConfig) -> PendingRecord | None:
    """Remove the members that have not sent SyncGroup within the rebalance timeout, and rebalance."""
    if not group.pending_sync_members:
        return None
    for member_id in paced(list(group.pending_sync_members)):
        group.remove_member(member_id)
    return prepare_rebalance(group, now, config)
