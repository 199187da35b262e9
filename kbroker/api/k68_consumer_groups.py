"""Consumer groups (KIP-848, kbroker/coordinator/group/consumer/).

- ConsumerGroupHeartbeat (key 68), versions 0 and 1: join a group, stay in it and reconcile partitions, leave it.
  Version 1 adds regular expressions; from it on, the client chooses the member id (KIP-1082).
- ConsumerGroupDescribe (key 69), versions 0 and 1: the state, epochs and members of groups. Version 1 adds the type of
  each member.
- Both get UNSUPPORTED_VERSION while the feature group.version is below 1, or without `consumer` in
  group.coordinator.rebalance.protocols.
"""

from base64 import urlsafe_b64encode

from kbroker.api.context import RequestContext, Services
from kbroker.api.k29_acls import GROUP_OPERATIONS
from kbroker.common import KafkaError
from kbroker.coordinator.group.assignors.server_assignors import supported_assignors
from kbroker.coordinator.group.consumer.consumer_groups import ConsumerGroups
from kbroker.coordinator.group.consumer.heartbeat import HeartbeatRequest, validate_request
from kbroker.runtime.turns import paced
from protocol.apis import ApiKey
from protocol.errors import ErrorCode
from protocol.messages.k68_consumer_groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    DescribedConsumerGroup,
)

# A group may have thousands of members.
RUNS_IN_TURNS = {ApiKey.CONSUMER_GROUP_DESCRIBE}


def _check_enabled(services: Services) -> None:
    services.groups.check_enabled(ConsumerGroups)
    if ConsumerGroups.type_name not in services.config.group_coordinator_rebalance_protocols:
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION)


async def heartbeat(
    services: Services, context: RequestContext, request: ConsumerGroupHeartbeatRequest
) -> ConsumerGroupHeartbeatResponse:
    _check_enabled(services)
    validate_request(request, context.version, supported_assignors(services.config.group_consumer_assignors))
    # Kafka's Uuid: its text is the URL-safe Base64 of the bytes.
    new_member_id = urlsafe_b64encode(services.environment.random.randbytes(16)).decode().rstrip("=")
    beat = HeartbeatRequest(request, new_member_id, context.client_id or "", context.client_host)
    return await services.groups.write(request.group_id, ConsumerGroups, lambda groups: groups.heartbeat(beat))


async def describe(
    services: Services, context: RequestContext, request: ConsumerGroupDescribeRequest
) -> ConsumerGroupDescribeResponse:
    # A large group that is named 10,000 times is described once.
    groups: dict[str, DescribedConsumerGroup] = {}
    for group_id in paced(request.group_ids):
        if group_id not in groups:
            group = groups[group_id] = await _describe(services, group_id)
            if request.include_authorized_operations and group.error_code == ErrorCode.NONE:
                group.authorized_operations = GROUP_OPERATIONS
    return ConsumerGroupDescribeResponse(groups=[groups[group_id] for group_id in request.group_ids])


async def _describe(services: Services, group_id: str) -> DescribedConsumerGroup:
    try:
        _check_enabled(services)
        if not group_id:
            raise KafkaError(ErrorCode.INVALID_GROUP_ID)
        return await services.groups.write(group_id, ConsumerGroups, lambda groups: groups.describe(group_id))
    except KafkaError as error:
        return DescribedConsumerGroup(group_id=group_id, error_code=error.code, error_message=error.message)


HANDLERS = {
    ApiKey.CONSUMER_GROUP_HEARTBEAT: heartbeat,
    ApiKey.CONSUMER_GROUP_DESCRIBE: describe,
}
