"""JoinGroup (key 11), versions 0 to 9: join a group, or join it again in a rebalance.

- The response is sent when the rebalance completes (kbroker/coordinator/group/classic/join.py).
- Version 0 has no rebalance timeout; it is the session timeout.
- From version 4 on, a new member without an instance id is sent its member id first (KIP-394).
"""

from uuid import UUID

from kbroker.api.context import RequestContext, Services
from kbroker.common import KafkaError
from kbroker.coordinator.group.classic.classic_groups import ClassicGroups
from kbroker.coordinator.group.classic.requests import JoinRequest, JoinResponse, Protocols
from protocol.errors import ErrorCode
from protocol.messages.k11_join_group import JoinGroupRequest, JoinGroupResponse, JoinGroupResponseMember

REBALANCE_TIMEOUT_VERSION = 1
KNOWN_MEMBER_ID_VERSION = 4
NULLABLE_PROTOCOL_VERSION = 7
SKIP_ASSIGNMENT_VERSION = 9
# A member id must fit into a protocol string of at most 32,767 bytes; a character has up to 4 bytes.
MAX_PREFIX_CHARACTERS = 8_000


async def handle(services: Services, context: RequestContext, request: JoinGroupRequest) -> JoinGroupResponse:
    try:
        _validate(services, request)
        join = _join_request(services, context, request)
        response: JoinResponse = await services.groups.call(
            request.group_id, lambda shard, respond: shard.kind(ClassicGroups).join_group(join, respond)
        )
    except KafkaError as error:
        response = JoinResponse(error.code, request.member_id)
    return _response(response, context.version)


def _validate(services: Services, request: JoinGroupRequest) -> None:
    config = services.config
    if not request.group_id:
        raise KafkaError(ErrorCode.INVALID_GROUP_ID)
    min_ms, max_ms = config.group_min_session_timeout_ms, config.group_max_session_timeout_ms
    if not min_ms <= request.session_timeout_ms <= max_ms:
        raise KafkaError(ErrorCode.INVALID_SESSION_TIMEOUT)


def _join_request(services: Services, context: RequestContext, request: JoinGroupRequest) -> JoinRequest:
    version, client_id = context.version, context.client_id or ""
    rebalance_timeout_ms = request.rebalance_timeout_ms
    if version < REBALANCE_TIMEOUT_VERSION:
        rebalance_timeout_ms = request.session_timeout_ms
    # The member id starts with an id by which administrators can identify the member.
    prefix = (request.group_instance_id or client_id)[:MAX_PREFIX_CHARACTERS]
    unique = UUID(bytes=services.environment.random.randbytes(16), version=4)
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
        protocols=_protocols(request),
        requires_known_member_id=version >= KNOWN_MEMBER_ID_VERSION,
        supports_skipping_assignment=version >= SKIP_ASSIGNMENT_VERSION,
        reason=request.reason,
    )


def _protocols(request: JoinGroupRequest) -> Protocols:
    """Return the protocols of a request. If one is listed twice, the first entry counts."""
    protocols: dict[str, bytes] = {}
    for protocol in request.protocols:
        protocols.setdefault(protocol.name, protocol.metadata)
    return tuple(protocols.items())


def _response(response: JoinResponse, version: int) -> JoinGroupResponse:
    protocol = response.protocol
    if protocol is None and version < NULLABLE_PROTOCOL_VERSION:
        protocol = ""
    return JoinGroupResponse(
        error_code=response.error,
        generation_id=response.generation,
        protocol_type=response.protocol_type,
        protocol_name=protocol,
        leader=response.leader_id,
        skip_assignment=response.skip_assignment,
        member_id=response.member_id,
        members=[
            JoinGroupResponseMember(
                member_id=member.member_id, group_instance_id=member.instance_id, metadata=member.metadata
            )
            for member in response.members
        ],
    )
