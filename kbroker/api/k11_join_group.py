"""JoinGroup (key 11), versions 0 to 9: become a member of a group, or stay one through a rebalance.

- The answer waits until the rebalance ends, see kbroker/coordinator/group/classic/join.py for what decides that.
- Version 0 has no rebalance timeout of its own: it is the session timeout.
- A new member without instance id is given its id first, from version 4 on (KIP-394).
"""

from uuid import UUID

from kbroker.api.context import RequestContext, Services
from kbroker.common import KafkaError
from kbroker.coordinator.group.classic.requests import JoinRequest, JoinResponse, Protocols
from protocol.errors import ErrorCode
from protocol.messages.k11_join_group import JoinGroupRequest, JoinGroupResponse, JoinGroupResponseMember

REBALANCE_TIMEOUT_VERSION = 1
MEMBER_ID_REQUIRED_VERSION = 4
NULLABLE_PROTOCOL_VERSION = 7
SKIP_ASSIGNMENT_VERSION = 9
# A member id has to be a string of the protocol too: 32,767 bytes, and a character takes up to 4.
LONGEST_PREFIX = 8_000


async def handle(services: Services, context: RequestContext, request: JoinGroupRequest) -> JoinGroupResponse:
    answer = _refusal(services, request)
    if answer is None:
        try:
            answer = await services.groups.join(_join_request(services, context, request))
        except KafkaError as refusal:
            answer = JoinResponse(refusal.code, request.member_id)
    return _response(answer, context.version)


def _refusal(services: Services, request: JoinGroupRequest) -> JoinResponse | None:
    config = services.config
    if not request.group_id:
        return JoinResponse(ErrorCode.INVALID_GROUP_ID, request.member_id)
    shortest, longest = config.group_min_session_timeout_ms, config.group_max_session_timeout_ms
    if not shortest <= request.session_timeout_ms <= longest:
        return JoinResponse(ErrorCode.INVALID_SESSION_TIMEOUT, request.member_id)
    return None


def _join_request(services: Services, context: RequestContext, request: JoinGroupRequest) -> JoinRequest:
    version, client_id = context.version, context.client_id or ""
    rebalance_timeout_ms = request.rebalance_timeout_ms
    if version < REBALANCE_TIMEOUT_VERSION:
        rebalance_timeout_ms = request.session_timeout_ms
    # The id begins with what an administrator knows the member by.
    prefix = (request.group_instance_id or client_id)[:LONGEST_PREFIX]
    unique = UUID(bytes=services.environment.random.randbytes(16), version=4)
    return JoinRequest(
        group_id=request.group_id,
        member_id=request.member_id,
        member_id_of_new=f"{prefix}-{unique}",
        instance_id=request.group_instance_id,
        client_id=client_id,
        client_host=context.client_host,
        session_timeout_ms=request.session_timeout_ms,
        rebalance_timeout_ms=rebalance_timeout_ms,
        protocol_type=request.protocol_type,
        protocols=_protocols(request),
        requires_member_id=version >= MEMBER_ID_REQUIRED_VERSION,
        skips_assignment=version >= SKIP_ASSIGNMENT_VERSION,
        reason=request.reason,
    )


def _protocols(request: JoinGroupRequest) -> Protocols:
    """Each name once, the first time it comes."""
    protocols: dict[str, bytes] = {}
    for one in request.protocols:
        protocols.setdefault(one.name, one.metadata)
    return tuple(protocols.items())


def _response(answer: JoinResponse, version: int) -> JoinGroupResponse:
    protocol = answer.protocol
    if protocol is None and version < NULLABLE_PROTOCOL_VERSION:
        protocol = ""
    return JoinGroupResponse(
        error_code=answer.error,
        generation_id=answer.generation,
        protocol_type=answer.protocol_type,
        protocol_name=protocol,
        leader=answer.leader,
        skip_assignment=answer.skip_assignment,
        member_id=answer.member_id,
        members=[
            JoinGroupResponseMember(
                member_id=member.member_id, group_instance_id=member.instance_id, metadata=member.metadata
            )
            for member in answer.members
        ],
    )
