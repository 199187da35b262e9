"""Heartbeat (key 12), versions 0 to 4: keep a member in its group, and report whether it has to join again.

While the group is loading the result is NONE, so that the member does not give up.
"""

from kbroker.api.context import RequestContext, Services
from kbroker.common import KafkaError
from kbroker.coordinator.group.classic.classic_groups import ClassicGroups
from protocol.errors import ErrorCode
from protocol.messages.k12_heartbeat import HeartbeatRequest, HeartbeatResponse


def handle(services: Services, context: RequestContext, request: HeartbeatRequest) -> HeartbeatResponse:
    if not request.group_id:
        return HeartbeatResponse(error_code=ErrorCode.INVALID_GROUP_ID)
    try:
        groups = services.groups.shard(request.group_id).kind(ClassicGroups)
    except KafkaError as error:
        is_loading = error.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        return HeartbeatResponse(error_code=ErrorCode.NONE if is_loading else error.code)
    code = groups.heartbeat(request.group_id, request.member_id, request.group_instance_id, request.generation_id)
    return HeartbeatResponse(error_code=code)
