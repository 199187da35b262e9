"""SyncGroup and Heartbeat.

PreparingRebalance   SyncGroup and Heartbeat: REBALANCE_IN_PROGRESS (join again)
CompletingRebalance  a SyncGroup waits for the leader's, which is written and then makes the group Stable
Stable               SyncGroup: the assignment again
"""

from dataclasses import replace

from kbroker.common import KafkaError
from kbroker.coordinator.group.classic.classic_group import SYNC_DEADLINE, ClassicGroup
from kbroker.coordinator.group.classic.group_state import GroupState
from kbroker.coordinator.group.classic.rebalance import drop_assignment, prepare, rebalance
from kbroker.coordinator.group.classic.requests import Now, Settings, SyncReply, SyncRequest, SyncResponse, Write
from protocol.errors import ErrorCode


def sync(group: ClassicGroup, request: SyncRequest, reply: SyncReply, now: Now, settings: Settings) -> Write | None:
    """Take a SyncGroup in. `reply` is called now, or when the leader's assignment is committed."""
    error = _refusal(group, request)
    if error is not ErrorCode.NONE:
        reply(SyncResponse(error))
        return None
    member = group.members[request.member_id]
    _synced(group, request.member_id)
    if group.state is GroupState.STABLE:
        reply(assignment_answer(group, member.assignment))
        return None
    # A repeated sync takes the place of the one that waits, which the client has given up.
    group.answer_sync(member, SyncResponse(ErrorCode.REBALANCE_IN_PROGRESS))
    member.syncing = reply
    if group.leader != request.member_id:
        return None
    return _write_assignment(group, request, now, settings)


def _refusal(group: ClassicGroup, request: SyncRequest) -> ErrorCode:
    try:
        group.check_member(request.member_id, request.instance_id)
    except KafkaError as error:
        return error.code
    if request.generation != group.generation:
        return ErrorCode.ILLEGAL_GENERATION
    for asked, chosen in ((request.protocol_type, group.protocol_type), (request.protocol, group.protocol)):
        if asked is not None and chosen is not None and asked != chosen:
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    if group.state is GroupState.PREPARING_REBALANCE:
        return ErrorCode.REBALANCE_IN_PROGRESS
    return ErrorCode.NONE


def _synced(group: ClassicGroup, member_id: str) -> None:
    group.pending_syncs.discard(member_id)
    if not group.pending_syncs:
        group.deadlines.cancel(SYNC_DEADLINE)


def _write_assignment(group: ClassicGroup, request: SyncRequest, now: Now, settings: Settings) -> Write:
    """Members that the leader forgot get an empty assignment."""
    given = dict(request.assignments)
    record = group.record(now.wall_ms)
    members = tuple(replace(one, assignment=given.get(one.member_id, b"")) for one in record.members)
    generation = group.generation

    def failed(error: ErrorCode, now: Now) -> None:
        if group.state is GroupState.COMPLETING_REBALANCE and group.generation == generation:
            drop_assignment(group, error, now)
            rebalance(group, now, settings)

    def committed(now: Now) -> None:
        for member in group.members.values():
            if group.answer_sync(member, assignment_answer(group, member.assignment)):
                group.keep_session(member, now.mono_ms)

    return Write(replace(record, members=members), committed, failed)


def assignment_answer(group: ClassicGroup, assignment: bytes) -> SyncResponse:
    return SyncResponse(ErrorCode.NONE, group.protocol_type, group.protocol, assignment)


def on_sync_deadline(group: ClassicGroup, now: Now, settings: Settings) -> Write | None:
    """Members that have not sent SyncGroup within the rebalance timeout are out; the others join again."""
    if not group.pending_syncs:
        return None
    for member_id in list(group.pending_syncs):
        group.remove(member_id)
    return prepare(group, now, settings)


def heartbeat(group: ClassicGroup, member_id: str, instance_id: str | None, generation: int, now: Now) -> ErrorCode:
    """A sign of life; the answer tells the member whether to join again."""
    try:
        member = group.check_member(member_id, instance_id)
    except KafkaError as error:
        return error.code
    if generation != group.generation:
        return ErrorCode.ILLEGAL_GENERATION
    group.keep_session(member, now.mono_ms)
    if group.state is GroupState.PREPARING_REBALANCE:
        return ErrorCode.REBALANCE_IN_PROGRESS
    return ErrorCode.NONE
