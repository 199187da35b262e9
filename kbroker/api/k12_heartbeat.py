"""Heartbeat (key 12), versions 0 to 4: keep a member in its group, and report whether it has to join again."""

from kbroker.api.context import RequestContext, Services
from protocol.errors import ErrorCode
from protocol.messages.k12_heartbeat import HeartbeatRequest, HeartbeatResponse


def handle(services: Services, context: RequestContext, request: HeartbeatRequest) -> HeartbeatResponse:
    if not request.group_id:
        return HeartbeatResponse(error_code=ErrorCode.INVALID_GROUP_ID)
    error = services.groups.heartbeat(
        request.group_id, request.member_id, request.group_instance_id, request.generation_id
    )
    return HeartbeatResponse(error_code=error)
