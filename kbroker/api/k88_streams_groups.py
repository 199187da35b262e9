"""Streams groups (KIP-1071, kbroker/coordinator/group/streams/).

- StreamsGroupHeartbeat (key 88), versions 0 and 1: join a group with the topology of the application, stay in it and
  get tasks, leave it. Version 1 has a larger acceptable recovery lag. The broker creates the internal topics of the
  application in the background.
- StreamsGroupDescribe (key 89), versions 0 and 1: the state, epochs, topology and members of groups. Version 1 adds the
  assignor. There is no plugin for descriptions of topologies (KIP-1331), so no group has one.
- Both get UNSUPPORTED_VERSION while the feature streams.version is below 1, or without `streams` in
  group.coordinator.rebalance.protocols.
- With ACLs the first needs READ on the group, DESCRIBE on the topics of the topology, and CREATE on the internal topics
  that are missing: the status of the response names those that are refused. The second needs DESCRIBE on the group and
  the topics.
"""

from kbroker.api.authorization import allows_on_cluster
from kbroker.api.context import RequestContext, Services
from kbroker.api.k15_groups import describe_groups_of_kind
from kbroker.authorization.acl import Operation, ResourceType
from kbroker.coordinator.group.streams.heartbeat import StreamsHeartbeat
from kbroker.coordinator.group.streams.requests import topic_names, validate_request
from kbroker.coordinator.group.streams.streams_groups import StreamsGroups
from kbroker.coordinator.group.streams.topology import Status
from kbroker.runtime.turns import paced
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


async def heartbeat(
    services: Services, context: RequestContext, request: StreamsGroupHeartbeatRequest
) -> StreamsGroupHeartbeatResponse:
    services.groups.check_enabled(StreamsGroups)
    validate_request(request)
    client_id, client_host = context.client_id or "", context.client_host
    beat = await services.groups.write(
        request.group_id, StreamsGroups, lambda kind: kind.heartbeat(request, client_id, client_host)
    )
    if beat.missing_topics:
        _create_topics(services, context, beat)
    return beat.response


def _create_topics(services: Services, context: RequestContext, beat: StreamsHeartbeat) -> None:
    """Begin to create the missing internal topics. The response has the reasons why that has failed before.

    As in Kafka none is created if the client may not create one of them.
    """
    new_topics = [topic.new_topic for topic in beat.missing_topics]
    access = context.access(services)
    if access is not None and not allows_on_cluster(access, Operation.CREATE):
        refused = [
            topic.name
            for topic in paced(new_topics)
            if not access.allows(Operation.CREATE, ResourceType.TOPIC, topic.name)
        ]
        if refused:
            _add_detail(beat, f"Unauthorized to CREATE on topics {', '.join(refused)}.")
            return
    failures = services.auto_topic_creation.begin_creation(
        new_topics, 2 * beat.response.heartbeat_interval_ms, context.requester
    )
    if failures:
        reasons = ", ".join(f"{name} ({reason})" for name, reason in failures.items())
        _add_detail(beat, f"Creation failed: {reasons}.")


def _add_detail(beat: StreamsHeartbeat, detail: str) -> None:
    for status in beat.response.status or ():
        if status.status_code == Status.MISSING_INTERNAL_TOPICS:
            status.status_detail += f"; {detail}"


async def describe(
    services: Services, context: RequestContext, request: StreamsGroupDescribeRequest
) -> StreamsGroupDescribeResponse:
    groups = await describe_groups_of_kind(
        services, context, request, StreamsGroups, DescribedStreamsGroup, lambda group: topic_names(group.topology)
    )
    if request.include_topology_description:
        for group in groups:
            if group.error_code == ErrorCode.NONE:
                group.topology_description_status = DESCRIPTION_NOT_STORED
    return StreamsGroupDescribeResponse(groups=groups)


HANDLERS = {
    ApiKey.STREAMS_GROUP_HEARTBEAT: heartbeat,
    ApiKey.STREAMS_GROUP_DESCRIBE: describe,
}
