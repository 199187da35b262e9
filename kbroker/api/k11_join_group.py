"""JoinGroup (key 11), versions 0 to 9: join a group, or join it again in a rebalance.

- The response is sent when the rebalance completes (kbroker/coordinator/group/classic/join.py).
- Version 0 has no rebalance timeout; it is the session timeout.
- From version 4 on, a new member without an instance id is sent its member id first (KIP-394).
"""

from uuid import UUID

from kbroker.api.context import RequestContext, Services
from kbroker.common import KafkaError
from kbroker.coordinator.group.classic.classic_groups import ClassicGroups
from kbroker.coordinator.group.classic.join import JoinRequest
from kbroker.coordinator.group.classic.rebalance import join_error
from protocol.errors import ErrorCode
from protocol.messages.k11_join_group import JoinGroupRequest, JoinGroupResponse

# The leader's response has all members.
RESPONDS_IN_TURNS = True
REBALANCE_TIMEOUT_VERSION = 1
KNOWN_MEMBER_ID_VERSION = 4
NULLABLE_PROTOCOL_VERSION = 7
SKIP_ASSIGNMENT_VERSION = 9
# A member id must fit into a protocol string of at most 32,767 bytes; a character has up to 4 bytes.
MAX_PREFIX_CHARACTERS = 8_000


async def handle(services: Services, context: RequestContext, request: JoinGroupRequest) -> JoinGroupResponse:
    config, version = services.config, context.version
    min_ms, max_ms = config.group_min_session_timeout_ms, config.group_max_session_timeout_ms
    if not request.group_id:
        response = join_error(ErrorCode.INVALID_GROUP_ID, request.member_id)
    elif not min_ms <= request.session_timeout_ms <= max_ms:
        response = join_error(ErrorCode.INVALID_SESSION_TIMEOUT, request.member_id)
    else:
        join = _join_request(services, context, request)
        try:
            response = await services.groups.call(request.group_id, ClassicGroups, ClassicGroups.join_group, join)
        except KafkaError as error:
            response = join_error(error.code, request.member_id)
    if response.protocol_name is None and version < NULLABLE_PROTOCOL_VERSION:
        response.protocol_name = ""
    return response


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
