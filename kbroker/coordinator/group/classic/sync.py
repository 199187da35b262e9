"""SyncGroup: distributes the leader's assignment to the members.

PreparingRebalance   REBALANCE_IN_PROGRESS
CompletingRebalance  waits for the leader's request; its assignment is written, and makes the group Stable
Stable               returns the assignment again
"""

from dataclasses import replace

from kbroker.common import KafkaError
from kbroker.config import BrokerConfig
from kbroker.coordinator.group.classic.classic_group import SYNC_DEADLINE, ClassicGroup
from kbroker.coordinator.group.classic.group_state import GroupState
from kbroker.coordinator.group.classic.rebalance import prepare_rebalance, rebalance, reset_assignments_with_error
from kbroker.coordinator.group.classic.requests import Now, PendingRecord, RespondToSync, SyncRequest, SyncResponse
from protocol.errors import ErrorCode


def sync_group(
    group: ClassicGroup, request: SyncRequest, respond: RespondToSync, now: Now, config: BrokerConfig
) -> PendingRecord | None:
    """Handle a SyncGroup. `respond` is called now or when the leader's assignment is committed."""
    error = _validate(group, request)
    if error is not ErrorCode.NONE:
        respond(SyncResponse(error))
        return None
    member = group.members[request.member_id]
    group.pending_sync_members.discard(request.member_id)
    if not group.pending_sync_members:
        group.deadlines.cancel(SYNC_DEADLINE)
    if group.state is GroupState.STABLE:
        respond(_response(group, member.assignment))
        return None
    # The client has abandoned its earlier request, which still waits.
    group.respond_to_sync(member, SyncResponse(ErrorCode.REBALANCE_IN_PROGRESS))
    member.awaiting_sync = respond
    if group.leader_id != request.member_id:
        return None
    return _write_assignments(group, dict(request.assignments), now, config)


def _validate(group: ClassicGroup, request: SyncRequest) -> ErrorCode:
    try:
        group.validate_member(request.member_id, request.instance_id)
    except KafkaError as error:
        return error.code
    if request.generation != group.generation:
        return ErrorCode.ILLEGAL_GENERATION
    for requested, selected in ((request.protocol_type, group.protocol_type), (request.protocol, group.protocol)):
        if requested is not None and selected is not None and requested != selected:
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    if group.state is GroupState.PREPARING_REBALANCE:
        return ErrorCode.REBALANCE_IN_PROGRESS
    return ErrorCode.NONE


def _write_assignments(
    group: ClassicGroup, assignments: dict[str, bytes], now: Now, config: BrokerConfig
) -> PendingRecord:
    """Store the assignments. Members without an assignment get an empty one."""
    record = group.record(now.wall_ms)
    members = tuple(replace(member, assignment=assignments.get(member.member_id, b"")) for member in record.members)
    generation = group.generation

    def on_committed(now: Now) -> None:
        for member in group.members.values():
            if group.respond_to_sync(member, _response(group, member.assignment)):
                group.restart_session(member, now.mono_ms)

    def on_failed(error: ErrorCode, now: Now) -> None:
        if group.state is GroupState.COMPLETING_REBALANCE and group.generation == generation:
            reset_assignments_with_error(group, error, now)
            rebalance(group, now, config)

    return PendingRecord(replace(record, members=members), on_committed, on_failed)


def _response(group: ClassicGroup, assignment: bytes) -> SyncResponse:
    return SyncResponse(ErrorCode.NONE, group.protocol_type, group.protocol, assignment)


def on_sync_deadline(group: ClassicGroup, now: Now, config: BrokerConfig) -> PendingRecord | None:
    """Remove the members that have not sent SyncGroup within the rebalance timeout, and rebalance."""
    if not group.pending_sync_members:
        return None
    for member_id in list(group.pending_sync_members):
        group.remove_member(member_id)
    return prepare_rebalance(group, now, config)
