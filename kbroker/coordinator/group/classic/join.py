"""JoinGroup: who may join, and what a join does in each state.

Empty                first member: a rebalance begins, delayed for more to come
PreparingRebalance   the join waits until the rebalance ends
CompletingRebalance  unchanged member: the generation again (its answer got lost); else another rebalance
Stable               leader, or changed member: a rebalance; unchanged follower: the generation again
"""

from dataclasses import replace

from kbroker.common import KafkaError
from kbroker.coordinator.group.classic.classic_group import ClassicGroup
from kbroker.coordinator.group.classic.classic_group_member import ClassicGroupMember
from kbroker.coordinator.group.classic.group_state import GroupState
from kbroker.coordinator.group.classic.rebalance import end_if_all_joined, generation_answer, prepare, rebalance
from kbroker.coordinator.group.classic.requests import (
    UNKNOWN_MEMBER,
    JoinReply,
    JoinRequest,
    JoinResponse,
    Now,
    Protocols,
    Settings,
    SyncResponse,
    Write,
)
from protocol.errors import ErrorCode

# A member that does not know its id yet cannot send heartbeats, and its connection is silent while the join
# waits: a lost one is only noticed by this. Kafka's value; it is no config there either.
NEW_MEMBER_JOIN_TIMEOUT_MS = 5 * 60 * 1000


def join(group: ClassicGroup, request: JoinRequest, reply: JoinReply, now: Now, settings: Settings) -> Write | None:
    """Take a join in. `reply` is called now or when the rebalance ends."""
    member_id = request.member_id
    known = member_id != UNKNOWN_MEMBER
    if not has_room(group, member_id, settings.group_max_size):
        group.remove(member_id)
        reply(JoinResponse(ErrorCode.GROUP_MAX_SIZE_REACHED))
    elif not group.supports(request.protocol_type, [name for name, _ in request.protocols]):
        reply(JoinResponse(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, member_id))
    elif known:
        return _join_again(group, request, reply, now, settings)
    elif request.instance_id is not None:
        old_id = group.static.get(request.instance_id)
        if old_id is not None:
            return _replace_static(group, old_id, request, reply, now, settings)
        return _add(group, request, request.member_id_of_new, reply, now, settings)
    elif request.requires_member_id:
        group.pending_joins.add(request.member_id_of_new)
        group.start_session(request.member_id_of_new, request.session_timeout_ms, now.mono_ms)
        reply(JoinResponse(ErrorCode.MEMBER_ID_REQUIRED, request.member_id_of_new))
    else:
        return _add(group, request, request.member_id_of_new, reply, now, settings)
    return None


def has_room(group: ClassicGroup, member_id: str, max_size: int) -> bool:
    """group.max.size counts members.

    While a rebalance is prepared only those that have joined count: a limit that was lowered keeps the last
    out.
    """
    member = group.members.get(member_id)
    if group.state is GroupState.PREPARING_REBALANCE:
        return (member is not None and member.joining is not None) or group.joining < max_size
    if group.state is GroupState.EMPTY:
        return True
    return member is not None or len(group.members) < max_size


def _join_again(
    group: ClassicGroup, request: JoinRequest, reply: JoinReply, now: Now, settings: Settings
) -> Write | None:
    member_id = request.member_id
    if member_id in group.pending_joins:
        if request.instance_id is not None:
            # An id is never pending for a static member; Kafka trips over this and answers the same.
            reply(JoinResponse(ErrorCode.UNKNOWN_SERVER_ERROR))
            return None
        return _add(group, request, member_id, reply, now, settings)
    try:
        member = group.check_member(member_id, request.instance_id)
    except KafkaError as error:
        reply(JoinResponse(error.code, member_id))
        return None
    unchanged = member.protocols == request.protocols
    if unchanged and (
        group.state is GroupState.COMPLETING_REBALANCE
        or (group.state is GroupState.STABLE and group.leader != member_id)
    ):
        reply(generation_answer(group, member_id))
        return None
    _update(group, member, request, reply)
    return rebalance(group, now, settings)


def _update(group: ClassicGroup, member: ClassicGroupMember, request: JoinRequest, reply: JoinReply) -> None:
    group.set_protocols(member, request.protocols)
    member.rebalance_timeout_ms = request.rebalance_timeout_ms
    member.session_timeout_ms = request.session_timeout_ms
    # A repeated join takes the place of the one that waits, which the client has given up.
    group.answer_join(member, JoinResponse(ErrorCode.REBALANCE_IN_PROGRESS, member.member_id))
    member.joining = reply
    group.joining += 1


def _add(
    group: ClassicGroup, request: JoinRequest, member_id: str, reply: JoinReply, now: Now, settings: Settings
) -> Write | None:
    if group.initial_delay is not None:
        group.joined_during_delay = True
    if not group.members:
        group.protocol_type = request.protocol_type
    group.add(_member(request, member_id, reply))
    group.start_session(member_id, NEW_MEMBER_JOIN_TIMEOUT_MS, now.mono_ms)
    return rebalance(group, now, settings)


def _member(request: JoinRequest, member_id: str, reply: JoinReply) -> ClassicGroupMember:
    return ClassicGroupMember(
        member_id=member_id,
        instance_id=request.instance_id,
        client_id=request.client_id,
        client_host=request.client_host,
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        session_timeout_ms=request.session_timeout_ms,
        protocols=request.protocols,
        is_new=True,
        joining=reply,
    )


def _replace_static(
    group: ClassicGroup, old_id: str, request: JoinRequest, reply: JoinReply, now: Now, settings: Settings
) -> Write | None:
    """A static member has restarted with no memory of its id (KIP-345): it takes its own place.

    In Stable nothing else happens as long as the same protocol would be chosen again: the generation is
    written with the new id.
    """
    if group.state is GroupState.STABLE and _keeps_protocol(group, group.members[old_id], request.protocols):
        return _write_replacement(group, old_id, request, reply, now)
    old = group.members[old_id]
    group.answer_join(old, JoinResponse(ErrorCode.FENCED_INSTANCE_ID, old_id))
    group.answer_sync(old, SyncResponse(ErrorCode.FENCED_INSTANCE_ID))
    _take_place(group, old_id, request, now)
    _update(group, group.members[request.member_id_of_new], request, reply)
    if group.state is GroupState.PREPARING_REBALANCE:
        return end_if_all_joined(group, now)
    # In CompletingRebalance too: the leader may hold the old id already, and would assign to it.
    return prepare(group, now, settings)


def _take_place(group: ClassicGroup, old_id: str, request: JoinRequest, now: Now) -> None:
    member = group.members[old_id].renamed(request.member_id_of_new)
    group.replace(old_id, member)
    group.keep_session(member, now.mono_ms)


def _keeps_protocol(group: ClassicGroup, member: ClassicGroupMember, protocols: Protocols) -> bool:
    """Would the group choose the same protocol if the member had these?"""
    kept = member.protocols
    group.set_protocols(member, protocols)
    chosen = group.choose_protocol()
    group.set_protocols(member, kept)
    return chosen == group.protocol


def _write_replacement(group: ClassicGroup, old_id: str, request: JoinRequest, reply: JoinReply, now: Now) -> Write:
    new_id, old_leader = request.member_id_of_new, group.leader or ""
    member = replace(
        group.members[old_id].renamed(new_id),
        protocols=request.protocols,
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        session_timeout_ms=request.session_timeout_ms,
    )

    def committed(now: Now) -> None:
        # The record was applied: the new id is in the old one's place. What it does not hold is added here.
        group.set_protocols(group.members[new_id], request.protocols)
        group.keep_session(group.members[new_id], now.mono_ms)
        answer = generation_answer(group, new_id)
        if request.skips_assignment:
            reply(replace(answer, skip_assignment=group.leader == new_id))
        else:
            # Told that the old id leads, a restarted leader acts as a follower and does not assign (KIP-345).
            reply(replace(answer, leader=old_leader, members=()))

    def failed(error: ErrorCode, now: Now) -> None:
        answer = generation_answer(group, UNKNOWN_MEMBER)
        reply(replace(answer, error=error, leader=old_leader))

    return Write(group.record_with(old_id, member, now.wall_ms), committed, failed)
