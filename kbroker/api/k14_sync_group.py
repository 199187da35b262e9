"""SyncGroup (key 14), versions 0 to 5: the leader sends the assignments, each member receives its own.

The response to a follower waits for the leader's request. Version 5 must name protocol type and protocol (KIP-559).
"""

from kbroker.api.context import RequestContext, Services
from kbroker.common import KafkaError
from kbroker.coordinator.group.classic.classic_groups import ClassicGroups
from kbroker.coordinator.group.classic.requests import SyncRequest, SyncResponse
from protocol.errors import ErrorCode
from protocol.messages.k14_sync_group import SyncGroupRequest, SyncGroupResponse

PROTOCOL_VERSION = 5


async def handle(services: Services, context: RequestContext, request: SyncGroupRequest) -> SyncGroupResponse:
    names_protocol = request.protocol_type is not None and request.protocol_name is not None
    if context.version >= PROTOCOL_VERSION and not names_protocol:
        return SyncGroupResponse(error_code=ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    if not request.group_id:
        return SyncGroupResponse(error_code=ErrorCode.INVALID_GROUP_ID)
    try:
        sync = _sync_request(request)
        response: SyncResponse = await services.groups.call(
            request.group_id, lambda shard, respond: shard.kind(ClassicGroups).sync_group(sync, respond)
        )
    except KafkaError as error:
        response = SyncResponse(error.code)
    return SyncGroupResponse(
        error_code=response.error,
        protocol_type=response.protocol_type,
        protocol_name=response.protocol,
        assignment=response.assignment,
    )


def _sync_request(request: SyncGroupRequest) -> SyncRequest:
    return SyncRequest(
        group_id=request.group_id,
        generation=request.generation_id,
        member_id=request.member_id,
        instance_id=request.group_instance_id,
        protocol_type=request.protocol_type,
        protocol=request.protocol_name,
        assignments=tuple((assignment.member_id, assignment.assignment) for assignment in request.assignments),
    )
