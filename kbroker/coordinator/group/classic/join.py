"""JoinGroup: adds a member to a group, or handles its rejoin in a rebalance.

Empty                the first member starts a rebalance, which is delayed for more members to join
PreparingRebalance   the request waits until the rebalance completes
CompletingRebalance  an unchanged member gets the generation again (its response was lost); else another rebalance
Stable               an unchanged follower gets the generation again; the leader or a changed member: a rebalance
"""

from dataclasses import dataclass, replace

from kbroker.common import KafkaError
from kbroker.config import BrokerConfig
from kbroker.coordinator.group.classic.classic_group import ClassicGroup, GroupState
from kbroker.coordinator.group.classic.classic_group_member import (
    UNKNOWN_MEMBER_ID,
    ClassicGroupMember,
    Protocols,
    RespondToJoin,
)
from kbroker.coordinator.group.classic.rebalance import (
    join_error,
    join_response,
    maybe_complete_join,
    prepare_rebalance,
    rebalance,
)
from kbroker.coordinator.group.classic.records import PendingRecord
from kbroker.coordinator.group.group import Now
from protocol.errors import ErrorCode
from protocol.messages.k11_classic_groups import SyncGroupResponse

# A member without a response to its first JoinGroup does not know its id, so it cannot send heartbeats, and its
# connection is silent while the request waits. Only this timeout detects that the member is lost. Kafka has no
# config for it either.
NEW_MEMBER_JOIN_TIMEOUT_MS = 5 * 60 * 1000


@dataclass(slots=True, frozen=True, kw_only=True)
class JoinRequest:
    """A JoinGroup request. `new_member_id` is the id of the member if it turns out to be new.

    `requires_known_member_id`: a new member is sent its id and has to join again with it (version 4, KIP-394).
    `supports_skipping_assignment`: the client knows skip_assignment (version 9, KIP-814).
    """

    group_id: str
    member_id: str
    new_member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: Protocols
    requires_known_member_id: bool = True
    supports_skipping_assignment: bool = True
    reason: str | None = None


def check_new_group(request: JoinRequest) -> ErrorCode:
    """Return the error if a new group cannot be created. Kafka creates it even then, and it remains empty."""
    if request.member_id != UNKNOWN_MEMBER_ID:
        return ErrorCode.UNKNOWN_MEMBER_ID
    if not request.protocol_type or not request.protocols:
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    return ErrorCode.NONE


def join_group(
    group: ClassicGroup, request: JoinRequest, respond: RespondToJoin, now: Now, config: BrokerConfig
) -> PendingRecord | None:
    """Handle a JoinGroup. `respond` is called now or when the rebalance completes."""
    member_id = request.member_id
    if not accepts_joining_member(group, member_id, config.group_max_size):
        group.remove_member(member_id)
        respond(join_error(ErrorCode.GROUP_MAX_SIZE_REACHED))
        return None
    if not group.supports_protocols(request.protocol_type, [name for name, _ in request.protocols]):
        respond(join_error(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, member_id))
        return None
    if member_id != UNKNOWN_MEMBER_ID:
        return _join_known_member(group, request, respond, now, config)
    if request.instance_id is not None:
        old_member_id = group.static_members.get(request.instance_id)
        if old_member_id is not None:
            return _replace_static_member(group, old_member_id, request, respond, now, config)
    elif request.requires_known_member_id:
        group.pending_join_members.add(request.new_member_id)
        group.start_session(request.new_member_id, request.session_timeout_ms, now.mono_ms)
        respond(join_error(ErrorCode.MEMBER_ID_REQUIRED, request.new_member_id))
        return None
    return _add_member(group, request, request.new_member_id, respond, now, config)


def accepts_joining_member(group: ClassicGroup, member_id: str, max_size: int) -> bool:
    """Return whether group.max.size admits the member.

    While a rebalance is prepared, only the members that have joined count. So a lowered limit removes the members that
    join last.
    """
    member = group.members.get(member_id)
    if group.state is GroupState.PREPARING_REBALANCE:
        has_joined = member is not None and member.awaiting_join is not None
        return has_joined or group.members_awaiting_join < max_size
    return group.state is GroupState.EMPTY or member is not None or len(group.members) < max_size


def _join_known_member(
    group: ClassicGroup, request: JoinRequest, respond: RespondToJoin, now: Now, config: BrokerConfig
) -> PendingRecord | None:
    member_id = request.member_id
    if member_id in group.pending_join_members:
        if request.instance_id is not None:
            # A static member is never pending. In Kafka an exception leads to this response.
            respond(join_error(ErrorCode.UNKNOWN_SERVER_ERROR))
            return None
        return _add_member(group, request, member_id, respond, now, config)
    try:
        member = group.validate_member(member_id, request.instance_id)
    except KafkaError as error:
        respond(join_error(error.code, member_id))
        return None
    is_unchanged = member.protocols == request.protocols
    if is_unchanged and (
        group.state is GroupState.COMPLETING_REBALANCE
        or (group.state is GroupState.STABLE and group.leader_id != member_id)
    ):
        respond(join_response(group, member_id))
        return None
    _update_member(group, member, request, respond)
    return rebalance(group, now, config)


def _update_member(
    group: ClassicGroup, member: ClassicGroupMember, request: JoinRequest, respond: RespondToJoin
) -> None:
    group.set_protocols(member, request.protocols)
    member.rebalance_timeout_ms = request.rebalance_timeout_ms
    member.session_timeout_ms = request.session_timeout_ms
    # The client has abandoned its earlier request, which still waits.
    group.respond_to_join(member, join_error(ErrorCode.REBALANCE_IN_PROGRESS, member.member_id))
    member.awaiting_join = respond
    group.members_awaiting_join += 1


def _add_member(
    group: ClassicGroup, request: JoinRequest, member_id: str, respond: RespondToJoin, now: Now, config: BrokerConfig
) -> PendingRecord | None:
    if group.initial_delay_ms is not None:
        group.new_member_added = True
    if not group.members:
        group.protocol_type = request.protocol_type
    group.add_member(
        ClassicGroupMember(
            member_id=member_id,
            instance_id=request.instance_id,
            client_id=request.client_id,
            client_host=request.client_host,
            rebalance_timeout_ms=request.rebalance_timeout_ms,
            session_timeout_ms=request.session_timeout_ms,
            protocols=request.protocols,
            is_new=True,
            awaiting_join=respond,
        )
    )
    group.start_session(member_id, NEW_MEMBER_JOIN_TIMEOUT_MS, now.mono_ms)
    return rebalance(group, now, config)


# Static members (KIP-345).


def _replace_static_member(
    group: ClassicGroup,
    old_member_id: str,
    request: JoinRequest,
    respond: RespondToJoin,
    now: Now,
    config: BrokerConfig,
) -> PendingRecord | None:
    """Replace a static member that has restarted and does not know its member id.

    A stable group that would select the same protocol again needs no rebalance; the generation is written with the new
    member id.
    """
    old = group.members[old_member_id]
    if group.state is GroupState.STABLE and _selects_same_protocol(group, old, request.protocols):
        return _write_replacement(group, old, request, respond, now)
    group.respond_to_join(old, join_error(ErrorCode.FENCED_INSTANCE_ID, old_member_id))
    group.respond_to_sync(old, SyncGroupResponse(error_code=ErrorCode.FENCED_INSTANCE_ID))
    member = old.with_member_id(request.new_member_id)
    group.replace_static_member(old_member_id, member)
    group.restart_session(member, now.mono_ms)
    _update_member(group, member, request, respond)
    if group.state is GroupState.PREPARING_REBALANCE:
        return maybe_complete_join(group, now)
    # This includes CompletingRebalance: the leader may already know the old id, and would assign partitions to it.
    return prepare_rebalance(group, now, config)


def _selects_same_protocol(group: ClassicGroup, member: ClassicGroupMember, protocols: Protocols) -> bool:
    """Return whether the group would select its protocol again if the member had these protocols."""
    old_protocols = member.protocols
    group.set_protocols(member, protocols)
    selected = group.select_protocol()
    group.set_protocols(member, old_protocols)
    return selected == group.protocol


def _write_replacement(
    group: ClassicGroup, old: ClassicGroupMember, request: JoinRequest, respond: RespondToJoin, now: Now
) -> PendingRecord:
    new_member_id, old_leader_id = request.new_member_id, group.leader_id or ""
    member = replace(
        old.with_member_id(new_member_id),
        protocols=request.protocols,
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        session_timeout_ms=request.session_timeout_ms,
    )

    def on_committed(now: Now) -> None:
        # The replayed record had only the selected protocol.
        group.set_protocols(group.members[new_member_id], request.protocols)
        group.restart_session(group.members[new_member_id], now.mono_ms)
        response = join_response(group, new_member_id)
        if request.supports_skipping_assignment:
            response.skip_assignment = group.leader_id == new_member_id
        else:
            # The response names the old id as the leader, so that a restarted leader acts as a follower and assigns
            # nothing.
            response.leader, response.members = old_leader_id, []
        respond(response)

    def on_failed(error: ErrorCode, now: Now) -> None:
        response = join_response(group, UNKNOWN_MEMBER_ID)
        response.error_code, response.leader = error, old_leader_id
        respond(response)

    record = group.record_with_replaced_member(old.member_id, member, now.wall_ms)
    return PendingRecord(record, on_committed, on_failed)
