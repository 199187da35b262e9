"""Share groups (KIP-932, kbroker/coordinator/group/share/).

- ShareGroupHeartbeat (key 76), version 1: join a group, stay in it and get partitions, leave it.
- ShareGroupDescribe (key 77), version 1: the state, epochs and members of groups.
- Both get UNSUPPORTED_VERSION while the feature share.version is below 1.
- With ACLs both need the same as the APIs of consumer groups (k68_consumer_groups.py).
"""

from kbroker.api.context import RequestContext, Services
from kbroker.api.k15_groups import assigned_topics, describe_groups_of_kind
from kbroker.coordinator.group.share.heartbeat import validate_request
from kbroker.coordinator.group.share.share_groups import ShareGroups
from protocol.apis import ApiKey
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
    groups = await describe_groups_of_kind(
        services, context, request, ShareGroups, DescribedShareGroup, assigned_topics
    )
    return ShareGroupDescribeResponse(groups=groups)


HANDLERS = {ApiKey.SHARE_GROUP_HEARTBEAT: heartbeat, ApiKey.SHARE_GROUP_DESCRIBE: describe}
