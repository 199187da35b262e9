"""The start offsets of share groups (KIP-932).

- DescribeShareGroupOffsets (key 90), versions 0 and 1: the start offset of each partition; version 1 adds the lag: the
  records from the start offset on that are not completed. -1 stands for an offset that no leader has determined yet.
- AlterShareGroupOffsets (key 91), version 0: set start offsets. Records before them are not delivered any more.
- DeleteShareGroupOffsets (key 92), version 0: forget topics, so that the group begins with them as with new ones.
- With ACLs the first needs DESCRIBE on the group and the topics, the second READ on both, the last DELETE on the group
  and READ on the topics.
- The group must be empty for the last two. All get UNSUPPORTED_VERSION while the feature share.version is below 1.
"""

from collections.abc import Iterable
from typing import cast

from kbroker.api.authorization import DEFAULT_TEXT, refusal, require
from kbroker.api.context import RequestContext, Services
from kbroker.api.k02_list_offsets import CONSUMER, LATEST
from kbroker.api.local_requests import handle_locally
from kbroker.api.response_errors import failed_rows_response
from kbroker.authorization.acl import Operation, ResourceType
from kbroker.common import KafkaError
from kbroker.coordinator.group.share.share_groups import ShareGroups
from kbroker.coordinator.share.share_partition_state import UNINITIALIZED_START_OFFSET, UNKNOWN_COUNT, StateSummary
from kbroker.metadata.image import TopicImage
from kbroker.runtime.turns import paced
from protocol.apis import ApiKey
from protocol.errors import ErrorCode, known_error
from protocol.messages.k02_list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from protocol.messages.k90_share_group_offsets import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsResponse,
    AlterShareGroupOffsetsResponsePartition,
    AlterShareGroupOffsetsResponseTopic,
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsResponse,
    DeleteShareGroupOffsetsResponseTopic,
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsResponse,
    DescribeShareGroupOffsetsResponseGroup,
    DescribeShareGroupOffsetsResponsePartition,
    DescribeShareGroupOffsetsResponseTopic,
)

failed_response = failed_rows_response

RUNS_IN_TURNS = True

LAG_VERSION = 1
LIST_OFFSETS_VERSION = 11
UNKNOWN_PARTITION = "This server does not host this topic-partition."
NO_OFFSETS = "There is no offset information to delete."
NOT_ENABLED = "The version of API is not supported."

# The end offset of a partition, or why it is not known.
EndOffset = int | KafkaError


async def describe(
    services: Services, context: RequestContext, request: DescribeShareGroupOffsetsRequest
) -> DescribeShareGroupOffsetsResponse:
    with_lag = context.version >= LAG_VERSION
    groups = [await _describe(services, context, group, with_lag=with_lag) for group in request.groups]
    return DescribeShareGroupOffsetsResponse(groups=groups)


async def _describe(
    services: Services, context: RequestContext, group: DescribeShareGroupOffsetsRequestGroup, *, with_lag: bool
) -> DescribeShareGroupOffsetsResponseGroup:
    group_id = group.group_id
    response = DescribeShareGroupOffsetsResponseGroup(group_id=group_id)
    try:
        require(services, context, Operation.DESCRIBE, ResourceType.GROUP, group_id)
        requested = await _requested_partitions(services, group)
        response.topics = _without_refused(services, context, group, requested)
        known = [
            (topic.topic_id, index)
            for name, indexes in paced(requested.items())
            if (topic := services.metadata.topics.get(name)) is not None
            for index in paced(indexes)
            if 0 <= index < len(services.metadata.resolve_view(topic).partitions)
        ]
        summaries, errors = await services.share_group_states.summaries(group_id, known)
    except KafkaError as error:
        response.error_code, response.error_message = error.code, error.message
        return response
    lagging = [key for key, summary in summaries.items() if with_lag and _has_lag(summary)]
    ends = await _end_offsets(services, lagging)
    for name, indexes in paced(requested.items()):
        topic = services.metadata.topics.get(name)
        row = DescribeShareGroupOffsetsResponseTopic(topic_name=name)
        response.topics.append(row)
        if topic is not None:
            row.topic_id = topic.topic_id
        for index in paced(indexes):
            end = ends.get((row.topic_id, index))
            # As in Kafka, a partition that does not exist has no offset, and no error.
            summary = summaries.get((row.topic_id, index), StateSummary())
            failure = errors.get((row.topic_id, index))
            if failure is not None:
                row.partitions.append(_failed(index, failure))
            elif isinstance(end, KafkaError):
                row.partitions.append(_failed(index, end))
            else:
                row.partitions.append(_described(index, summary, end))
    return response


def _without_refused(
    services: Services,
    context: RequestContext,
    group: DescribeShareGroupOffsetsRequestGroup,
    requested: dict[str, list[int]],
) -> list[DescribeShareGroupOffsetsResponseTopic]:
    """Remove the topics that the client may not describe. Returns rows with errors for those that it has named."""
    access = context.access(services)
    refused = [
        name
        for name in paced(requested)
        if access is not None and not access.allows(Operation.DESCRIBE, ResourceType.TOPIC, name)
    ]
    error = refusal(ResourceType.TOPIC, DEFAULT_TEXT)
    rows = []
    for name in paced(refused):
        partitions = [_failed(index, error) for index in paced(requested.pop(name))]
        rows.append(DescribeShareGroupOffsetsResponseTopic(topic_name=name, partitions=partitions))
    return [] if group.topics is None else rows


async def _requested_partitions(
    services: Services, group: DescribeShareGroupOffsetsRequestGroup
) -> dict[str, list[int]]:
    """Return the partitions by topic: those of the request, or all that have a state."""
    group_id = group.group_id
    services.groups.check_enabled(ShareGroups)
    if group.topics is not None:
        return {topic.topic_name: list(dict.fromkeys(topic.partitions)) for topic in paced(group.topics)}
    states = await services.groups.write(group_id, ShareGroups, lambda kind: kind.initialized_partitions(group_id))
    topics = services.metadata.topics_by_id
    return {topics[id].name: sorted(each.partitions) for id, each in states.items() if id in topics}


def _has_lag(summary: StateSummary) -> bool:
    return summary.start_offset != UNINITIALIZED_START_OFFSET and summary.delivery_complete_count != UNKNOWN_COUNT


def _described(index: int, summary: StateSummary, end: int | None) -> DescribeShareGroupOffsetsResponsePartition:
    partition = DescribeShareGroupOffsetsResponsePartition(
        partition_index=index, start_offset=summary.start_offset, leader_epoch=summary.leader_epoch
    )
    if end is not None:
        partition.lag = end - summary.start_offset - summary.delivery_complete_count
    return partition


def _failed(index: int, error: KafkaError) -> DescribeShareGroupOffsetsResponsePartition:
    return DescribeShareGroupOffsetsResponsePartition(
        partition_index=index,
        start_offset=UNINITIALIZED_START_OFFSET,
        error_code=error.code,
        error_message=error.message,
    )


async def _end_offsets(
    services: Services, partitions: Iterable[tuple[bytes, int]]
) -> dict[tuple[bytes, int], EndOffset]:
    """Return the high watermarks, with a ListOffsets request to each leader."""
    ends: dict[tuple[bytes, int], EndOffset] = {}
    by_leader: dict[int, list[tuple[TopicImage, int]]] = {}
    for topic_id, index in paced(partitions):
        topic = services.metadata.topics_by_id[topic_id]
        leader = services.metadata.resolve_view(topic).partitions[index].leader
        by_leader.setdefault(leader, []).append((topic, index))
    for leader, led in by_leader.items():
        topics: dict[str, list[ListOffsetsPartition]] = {}
        for topic, index in paced(led):
            partition = ListOffsetsPartition(partition_index=index, timestamp=LATEST)
            topics.setdefault(topic.name, []).append(partition)
        rows = [ListOffsetsTopic(name=name, partitions=partitions) for name, partitions in topics.items()]
        try:
            response = await _list_offsets(services, leader, ListOffsetsRequest(replica_id=CONSUMER, topics=rows))
        except KafkaError as error:
            ends.update({(topic.topic_id, index): error for topic, index in led})
            continue
        ids = {topic.name: topic.topic_id for topic, _ in led}
        for row in paced(response.topics):
            for result in paced(row.partitions):
                code = known_error(result.error_code)
                end: EndOffset = KafkaError(code) if code else result.offset
                ends[ids[row.name], result.partition_index] = end
    return ends


async def _list_offsets(services: Services, leader: int, request: ListOffsetsRequest) -> ListOffsetsResponse:
    if leader == services.node_id:
        response = await handle_locally(services, request, LIST_OFFSETS_VERSION, (leader, 0))
    elif services.peers is None:
        raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE)
    else:
        timeout_ms = services.config.request_timeout_ms
        response = await services.peers.request(leader, request, LIST_OFFSETS_VERSION, timeout_ms=timeout_ms)
    return cast(ListOffsetsResponse, response)


async def alter(
    services: Services, context: RequestContext, request: AlterShareGroupOffsetsRequest
) -> AlterShareGroupOffsetsResponse:
    services.groups.check_enabled(ShareGroups, NOT_ENABLED)
    if not request.group_id:
        raise KafkaError(ErrorCode.INVALID_GROUP_ID, "The group id is invalid.")
    offsets = {
        topic.topic_name: {partition.partition_index: partition.start_offset for partition in paced(topic.partitions)}
        for topic in paced(request.topics)
    }
    errors = await services.share_group_states.alter(request.group_id, offsets)
    response = AlterShareGroupOffsetsResponse()
    # As in Kafka, those of topics that do not exist come first.
    for name, partitions in paced(sorted(offsets.items(), key=lambda item: item[0] in services.metadata.topics)):
        topic = services.metadata.topics.get(name)
        row = AlterShareGroupOffsetsResponseTopic(topic_name=name)
        count = 0
        if topic is not None:
            row.topic_id, count = topic.topic_id, services.metadata.resolve(topic).listed_partitions
        for index in paced(partitions):
            result = AlterShareGroupOffsetsResponsePartition(partition_index=index)
            unknown = KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_PARTITION)
            error = errors.get((row.topic_id, index)) if index < count else unknown
            if error is not None:
                result.error_code, result.error_message = error.code, error.message
            row.partitions.append(result)
        response.responses.append(row)
    return response


async def delete(
    services: Services, context: RequestContext, request: DeleteShareGroupOffsetsRequest
) -> DeleteShareGroupOffsetsResponse:
    services.groups.check_enabled(ShareGroups, NOT_ENABLED)
    if not request.group_id:
        raise KafkaError(ErrorCode.INVALID_GROUP_ID, "The group id is invalid.")
    names = dict.fromkeys(topic.topic_name for topic in paced(request.topics))
    states, errors = await services.share_group_states.delete(request.group_id, names)
    response = DeleteShareGroupOffsetsResponse()
    failed = {topic_id: error for (topic_id, _), error in errors.items()}
    for name in paced(names):
        topic = services.metadata.topics.get(name)
        row = DeleteShareGroupOffsetsResponseTopic(topic_name=name)
        error: KafkaError | None
        if topic is None:
            error = KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_PARTITION)
        elif topic.topic_id not in states:
            error = KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, NO_OFFSETS)
        else:
            row.topic_id, error = topic.topic_id, failed.get(topic.topic_id)
        if error is not None:
            row.error_code, row.error_message = error.code, error.message
        response.responses.append(row)
    return response


HANDLERS = {
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: describe,
    ApiKey.ALTER_SHARE_GROUP_OFFSETS: alter,
    ApiKey.DELETE_SHARE_GROUP_OFFSETS: delete,
}
