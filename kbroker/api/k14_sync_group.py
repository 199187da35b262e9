"""SyncGroup (key 14), versions 0 to 5: the leader sends the assignments, each member receives its own.

The response to a follower waits for the leader's request. Version 5 must name protocol type and protocol (KIP-559).
"""

from kbroker.api.context import RequestContext, Services
from kbroker.common import KafkaError
from kbroker.coordinator.group.classic.classic_groups import ClassicGroups
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
        return await services.groups.call(request.group_id, ClassicGroups, ClassicGroups.sync_group, request)
    except KafkaError as error:
        return SyncGroupResponse(error_code=error.code)
