"""The membership in classic groups (kbroker/coordinator/group/classic/).

- JoinGroup (key 11), versions 0 to 9: join a group, or join it again in a rebalance. The response is sent when the
  rebalance completes. Version 0 has no rebalance timeout; it is the session timeout. From version 4 on, a new member
  without an instance id is sent its member id first (KIP-394).
- Heartbeat (key 12), versions 0 to 4: keep a member in its group, and report whether it has to join again. While the
  group is loading the result is NONE, so that the member does not give up.
- LeaveGroup (key 13), versions 0 to 5. Version 3 adds requests for several members, each with its own result, also by
  instance id only (KIP-345). Before, the result of the member is the result of the request.
- SyncGroup (key 14), versions 0 to 5: the leader sends the assignments, each member receives its own. The response to a
  follower waits for the leader's request. Version 5 must name protocol type and protocol (KIP-559).
"""

from typing import Any
from uuid import UUID

from kbroker.api.context import RequestContext, Services
from kbroker.api.response_errors import failed_response as error_response
from kbroker.common import KafkaError
from kbroker.coordinator.group.classic.join import JoinRequest
from kbroker.coordinator.group.classic.rebalance import join_error
from kbroker.runtime.turns import paced
from protocol.apis import ApiKey
from protocol.errors import ErrorCode
from protocol.messages.k11_classic_groups import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
    MemberResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)

# The response to the leader has all members.
RESPONDS_IN_TURNS = {ApiKey.JOIN_GROUP}

# Versions of JoinGroup.
REBALANCE_TIMEOUT_VERSION = 1
KNOWN_MEMBER_ID_VERSION = 4
NULLABLE_PROTOCOL_VERSION = 7
SKIP_ASSIGNMENT_VERSION = 9
# A member id must fit into a protocol string of at most 32,767 bytes; a character has up to 4 bytes.
MAX_PREFIX_CHARACTERS = 8_000
# Of LeaveGroup and of SyncGroup.
SEVERAL_MEMBERS_VERSION = 3
PROTOCOL_VERSION = 5


async def join_group(services: Services, context: RequestContext, request: JoinGroupRequest) -> JoinGroupResponse:
    config = services.config
    min_ms, max_ms = config.group_min_session_timeout_ms, config.group_max_session_timeout_ms
    try:
        _check_group_id(request.group_id)
        if not min_ms <= request.session_timeout_ms <= max_ms:
            raise KafkaError(ErrorCode.INVALID_SESSION_TIMEOUT)
        join = _join_request(services, context, request)
        response: JoinGroupResponse = await services.groups.call(
            request.group_id, lambda members, respond: members.join_group(join, respond)
        )
    except KafkaError as error:
        response = join_error(error.code, request.member_id)
    return _join_response(context, response)


def _join_response(context: RequestContext, response: JoinGroupResponse) -> JoinGroupResponse:
    if response.protocol_name is None and context.version < NULLABLE_PROTOCOL_VERSION:
        response.protocol_name = ""
    return response


def failed_response(context: RequestContext, request: Any, error: KafkaError) -> Any:
    """Return the response to a request that the group's ACLs refuse, among others."""
    if isinstance(request, JoinGroupRequest):
        return _join_response(context, join_error(error.code, ""))
    return error_response(context, request, error)


def _check_group_id(group_id: str) -> None:
    if not group_id:
        raise KafkaError(ErrorCode.INVALID_GROUP_ID)


def _join_request(services: Services, context: RequestContext, request: JoinGroupRequest) -> JoinRequest:
    version, client_id = context.version, context.client_id or ""
    rebalance_timeout_ms = request.rebalance_timeout_ms
    if version < REBALANCE_TIMEOUT_VERSION:
        rebalance_timeout_ms = request.session_timeout_ms
    # The member id starts with an id by which administrators can identify the member.
    prefix = (request.group_instance_id or client_id)[:MAX_PREFIX_CHARACTERS]
    unique = UUID(bytes=services.environment.random.randbytes(16), version=4)
    protocols: dict[str, bytes] = {}
    for protocol in request.protocols:
        # If one is listed twice, the first entry counts.
        protocols.setdefault(protocol.name, protocol.metadata)
    return JoinRequest(
        group_id=request.group_id,
        member_id=request.member_id,
        new_member_id=f"{prefix}-{unique}",
        instance_id=request.group_instance_id,
        client_id=client_id,
        client_host=context.client_host,
        session_timeout_ms=request.session_timeout_ms,
        rebalance_timeout_ms=rebalance_timeout_ms,
        protocol_type=request.protocol_type,
        protocols=tuple(protocols.items()),
        requires_known_member_id=version >= KNOWN_MEMBER_ID_VERSION,
        supports_skipping_assignment=version >= SKIP_ASSIGNMENT_VERSION,
        reason=request.reason,
    )


def heartbeat(services: Services, context: RequestContext, request: HeartbeatRequest) -> HeartbeatResponse:
    _check_group_id(request.group_id)
    try:
        shard = services.groups.shard(request.group_id)
    except KafkaError as error:
        if error.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            return HeartbeatResponse()
        raise
    if request.group_id in shard.converted_groups:
        # Its JoinGroup waits for the conversion.
        return HeartbeatResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS)
    code = shard.classic_members(request.group_id).classic_heartbeat(
        request.group_id, request.member_id, request.group_instance_id, request.generation_id
    )
    return HeartbeatResponse(error_code=code)


async def leave_group(services: Services, context: RequestContext, request: LeaveGroupRequest) -> LeaveGroupResponse:
    _check_group_id(request.group_id)
    has_several = context.version >= SEVERAL_MEMBERS_VERSION
    members = request.members if has_several else [MemberIdentity(member_id=request.member_id)]
    errors: list[ErrorCode] = await services.groups.call(
        request.group_id, lambda of_group, _: of_group.leave_group(request.group_id, members)
    )
    if not has_several:
        return LeaveGroupResponse(error_code=errors[0])
    return LeaveGroupResponse(
        members=[
            MemberResponse(member_id=member.member_id, group_instance_id=member.group_instance_id, error_code=error)
            for member, error in paced(zip(members, errors, strict=True))
        ]
    )


async def sync_group(services: Services, context: RequestContext, request: SyncGroupRequest) -> SyncGroupResponse:
    names_protocol = request.protocol_type is not None and request.protocol_name is not None
    if context.version >= PROTOCOL_VERSION and not names_protocol:
        raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    _check_group_id(request.group_id)
    response: SyncGroupResponse = await services.groups.call(
        request.group_id, lambda members, respond: members.sync_group(request, respond)
    )
    return response


HANDLERS = {
    ApiKey.JOIN_GROUP: join_group,
    ApiKey.HEARTBEAT: heartbeat,
    ApiKey.LEAVE_GROUP: leave_group,
    ApiKey.SYNC_GROUP: sync_group,
}
