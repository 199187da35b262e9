"""Consumer groups (KIP-848, kbroker/coordinator/group/consumer/).

- ConsumerGroupHeartbeat (key 68), versions 0 and 1: join a group, stay in it and reconcile partitions, leave it.
  Version 1 adds regular expressions; from it on, the client chooses the member id (KIP-1082).
- ConsumerGroupDescribe (key 69), versions 0 and 1: the state, epochs and members of groups. Version 1 adds the type of
  each member.
- Both get UNSUPPORTED_VERSION while the feature group.version is below 1, or without `consumer` in
  group.coordinator.rebalance.protocols.
- With ACLs the first needs READ on the group and DESCRIBE on the topics that it names (regular expressions match only
  such topics), the second DESCRIBE on the group and on all topics that are assigned.
"""

from collections.abc import Coroutine
from typing import Any

from kbroker.api.context import RequestContext, Services
from kbroker.api.k15_groups import assigned_topics, describe_groups_of_kind
from kbroker.authorization.authorizer import Access
from kbroker.common import uuid_text
from kbroker.coordinator.group.assignors.server_assignors import supported_assignors
from kbroker.coordinator.group.consumer.consumer_groups import ConsumerGroups
from kbroker.coordinator.group.consumer.heartbeat import HeartbeatRequest, validate_request
from protocol.apis import ApiKey
from protocol.messages.k68_consumer_groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    DescribedConsumerGroup,
)

# A group may have thousands of members.
RUNS_IN_TURNS = {ApiKey.CONSUMER_GROUP_DESCRIBE}


def heartbeat(
    services: Services, context: RequestContext, request: ConsumerGroupHeartbeatRequest
) -> ConsumerGroupHeartbeatResponse | Coroutine[Any, Any, ConsumerGroupHeartbeatResponse]:
    services.groups.check_enabled(ConsumerGroups)
    validate_request(request, context.version, supported_assignors(services.config.group_consumer_assignors))
    client = context.client_id or "", context.client_host
    kind = services.groups.shard(request.group_id).kind(ConsumerGroups)
    return kind.unchanged(request, client) or _heartbeat(services, request, client, context.access(services))


async def _heartbeat(
    services: Services, request: ConsumerGroupHeartbeatRequest, client: tuple[str, str], access: Access | None
) -> ConsumerGroupHeartbeatResponse:
    new_member_id = uuid_text(services.environment.random.randbytes(16))
    beat = HeartbeatRequest(request, new_member_id, *client, access=access)
    return await services.groups.write(request.group_id, ConsumerGroups, lambda groups: groups.heartbeat(beat))


async def describe(
    services: Services, context: RequestContext, request: ConsumerGroupDescribeRequest
) -> ConsumerGroupDescribeResponse:
    groups = await describe_groups_of_kind(
        services, context, request, ConsumerGroups, DescribedConsumerGroup, assigned_topics
    )
    return ConsumerGroupDescribeResponse(groups=groups)


HANDLERS = {ApiKey.CONSUMER_GROUP_HEARTBEAT: heartbeat, ApiKey.CONSUMER_GROUP_DESCRIBE: describe}
