"""Streams groups (KIP-1071, kbroker/coordinator/group/streams/).

- StreamsGroupHeartbeat (key 88), versions 0 and 1: join a group with the topology of the application, stay in it and
  get tasks, leave it. Version 1 has a larger acceptable recovery lag. The broker creates the internal topics of the
  application in the background.
- StreamsGroupDescribe (key 89), versions 0 and 1: the state, epochs, topology and members of groups. Version 1 adds the
  assignor. There is no plugin for descriptions of topologies (KIP-1331), so no group has one.
- Both get UNSUPPORTED_VERSION while the feature streams.version is below 1, or without `streams` in
  group.coordinator.rebalance.protocols.
"""

from kbroker.api.context import RequestContext, Services
from kbroker.api.k15_groups import describe_groups_of_kind
from kbroker.common import KafkaError
from kbroker.coordinator.group.streams.heartbeat import StreamsHeartbeat
from kbroker.coordinator.group.streams.requests import validate_request
from kbroker.coordinator.group.streams.streams_groups import StreamsGroups
from kbroker.coordinator.group.streams.topology import Status
from protocol.apis import ApiKey
from protocol.errors import ErrorCode
from protocol.messages.k88_streams_groups import (
    DescribedStreamsGroup,
    StreamsGroupDescribeRequest,
    StreamsGroupDescribeResponse,
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
)

DESCRIPTION_NOT_STORED = 1
# A group may have thousands of members.
RUNS_IN_TURNS = {ApiKey.STREAMS_GROUP_DESCRIBE}


def _check_enabled(services: Services) -> None:
    services.groups.check_enabled(StreamsGroups)
    if StreamsGroups.type_name not in services.config.group_coordinator_rebalance_protocols:
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION)


async def heartbeat(
    services: Services, context: RequestContext, request: StreamsGroupHeartbeatRequest
) -> StreamsGroupHeartbeatResponse:
    _check_enabled(services)
    validate_request(request)
    client_id, client_host = context.client_id or "", context.client_host
    beat = await services.groups.write(
        request.group_id, StreamsGroups, lambda kind: kind.heartbeat(request, client_id, client_host)
    )
    if beat.missing_topics:
        _create_topics(services, context, beat)
    return beat.response


def _create_topics(services: Services, context: RequestContext, beat: StreamsHeartbeat) -> None:
    """Begin to create the missing internal topics. The response has the reasons why that has failed before."""
    new_topics = [topic.new_topic for topic in beat.missing_topics]
    failures = services.auto_topic_creation.begin_creation(
        new_topics, 2 * beat.response.heartbeat_interval_ms, context.requester
    )
    for status in beat.response.status or ():
        if failures and status.status_code == Status.MISSING_INTERNAL_TOPICS:
            reasons = ", ".join(f"{name} ({reason})" for name, reason in failures.items())
            status.status_detail += f"; Creation failed: {reasons}."


async def describe(
    services: Services, context: RequestContext, request: StreamsGroupDescribeRequest
) -> StreamsGroupDescribeResponse:
    groups = await describe_groups_of_kind(services, request, StreamsGroups, DescribedStreamsGroup, _check_enabled)
    if request.include_topology_description:
        for group in groups:
            if group.error_code == ErrorCode.NONE:
                group.topology_description_status = DESCRIPTION_NOT_STORED
    return StreamsGroupDescribeResponse(groups=groups)


HANDLERS = {
    ApiKey.STREAMS_GROUP_HEARTBEAT: heartbeat,
    ApiKey.STREAMS_GROUP_DESCRIBE: describe,
}
