"""Share groups (KIP-932, kbroker/coordinator/group/share/).

- ShareGroupHeartbeat (key 76), version 1: join a group, stay in it and get partitions, leave it.
- ShareGroupDescribe (key 77), version 1: the state, epochs and members of groups.
- Both get UNSUPPORTED_VERSION while the feature share.version is below 1.
"""

from kbroker.api.context import RequestContext, Services
from kbroker.api.k29_acls import GROUP_OPERATIONS
from kbroker.common import KafkaError
from kbroker.coordinator.group.share.heartbeat import validate_request
from kbroker.coordinator.group.share.share_groups import ShareGroups
from kbroker.runtime.turns import paced
from protocol.apis import ApiKey
from protocol.errors import ErrorCode
from protocol.messages.k76_share_groups import (
    DescribedShareGroup,
    ShareGroupDescribeRequest,
    ShareGroupDescribeResponse,
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
)

# A group may have thousands of members.
RUNS_IN_TURNS = {ApiKey.SHARE_GROUP_DESCRIBE}


async def heartbeat(
    services: Services, context: RequestContext, request: ShareGroupHeartbeatRequest
) -> ShareGroupHeartbeatResponse:
    services.groups.check_enabled(ShareGroups)
    validate_request(request)
    client_id, client_host = context.client_id or "", context.client_host
    response, initialization = await services.groups.write(
        request.group_id, ShareGroups, lambda kind: kind.heartbeat(request, client_id, client_host)
    )
    if initialization is not None:
        services.share_group_states.begin_initialization(initialization)
    return response


async def describe(
    services: Services, context: RequestContext, request: ShareGroupDescribeRequest
) -> ShareGroupDescribeResponse:
    # A large group that is named 10,000 times is described once.
    groups: dict[str, DescribedShareGroup] = {}
    for group_id in paced(request.group_ids):
        if group_id not in groups:
            group = groups[group_id] = await _describe(services, group_id)
            if request.include_authorized_operations and group.error_code == ErrorCode.NONE:
                group.authorized_operations = GROUP_OPERATIONS
    return ShareGroupDescribeResponse(groups=[groups[group_id] for group_id in request.group_ids])


async def _describe(services: Services, group_id: str) -> DescribedShareGroup:
    try:
        services.groups.check_enabled(ShareGroups)
        if not group_id:
            raise KafkaError(ErrorCode.INVALID_GROUP_ID)
        return await services.groups.write(group_id, ShareGroups, lambda kind: kind.describe(group_id))
    except KafkaError as error:
        return DescribedShareGroup(group_id=group_id, error_code=error.code, error_message=error.message)


HANDLERS = {
    ApiKey.SHARE_GROUP_HEARTBEAT: heartbeat,
    ApiKey.SHARE_GROUP_DESCRIBE: describe,
}
