"""SyncGroup (key 14), versions 0 to 5: the leader brings the assignment, everybody gets their own.

A follower's answer waits for the leader. Version 5 has to name protocol type and protocol (KIP-559).
"""

from kbroker.api.context import RequestContext, Services
from kbroker.common import KafkaError
from kbroker.coordinator.group.classic.requests import SyncRequest, SyncResponse
from protocol.errors import ErrorCode
from protocol.messages.k14_sync_group import SyncGroupRequest, SyncGroupResponse

PROTOCOL_VERSION = 5


async def handle(services: Services, context: RequestContext, request: SyncGroupRequest) -> SyncGroupResponse:
    named = request.protocol_type is not None and request.protocol_name is not None
    if context.version >= PROTOCOL_VERSION and not named:
        return SyncGroupResponse(error_code=ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    if not request.group_id:
        return SyncGroupResponse(error_code=ErrorCode.INVALID_GROUP_ID)
    try:
        answer = await services.groups.sync(_sync_request(request))
    except KafkaError as refusal:
        answer = SyncResponse(refusal.code)
    return SyncGroupResponse(
        error_code=answer.error,
        protocol_type=answer.protocol_type,
        protocol_name=answer.protocol,
        assignment=answer.assignment,
    )


def _sync_request(request: SyncGroupRequest) -> SyncRequest:
    return SyncRequest(
        group_id=request.group_id,
        generation=request.generation_id,
        member_id=request.member_id,
        instance_id=request.group_instance_id,
        protocol_type=request.protocol_type,
        protocol=request.protocol_name,
        assignments=tuple((one.member_id, one.assignment) for one in request.assignments),
    )
