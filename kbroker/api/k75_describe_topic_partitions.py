"""DescribeTopicPartitions (key 75), version 0 (KIP-966): topics with their partitions, in the order of their names.

- A request without topics returns all topics.
- cursor is the topic and partition with which a page starts. If the request names topics, it must be one of them.
- A page has at most response_partition_limit partitions, at least 1 and at most max.request.partition.size.limit.
  Topics that do not exist do not count.
- Topics without DESCRIBE are left out of all topics. If they are named, they have TOPIC_AUTHORIZATION_FAILED at the end
  of the page, whether they exist or not.
- A replica is offline if its broker is fenced, not registered, or without the listener of the request. As in Kafka, a
  leader without this listener is not named, without an error. The eligible leader replicas (ELR) and the last known
  ones are those that the controller has stored with the partition.
"""

from collections.abc import Mapping
from functools import partial
from heapq import merge

from kbroker.api.context import RequestContext, Services
from kbroker.authorization.acl import Operation, ResourceType
from kbroker.common import NO_LEADER
from kbroker.metadata.image import BrokerEndpoint, MetadataImage, PartitionRegistration, TopicImage
from kbroker.metadata.topics.topic_names import INTERNAL_TOPICS, topic_name_error
from kbroker.runtime.turns import paced, yield_if_due
from protocol.errors import ErrorCode
from protocol.messages.k75_describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)

# A request without topics means all.
RUNS_IN_TURNS = True

SORTED_AT_ONCE = 1000


def handle(
    services: Services, context: RequestContext, request: DescribeTopicPartitionsRequest
) -> DescribeTopicPartitionsResponse:
    cursor = request.cursor
    requested = _sorted_names(request)
    if cursor is not None and (cursor.partition_index < 0 or (requested and cursor.topic_name not in requested)):
        topics = [_missing_topic(ErrorCode.INVALID_REQUEST, name) for name in paced(requested)]
        return DescribeTopicPartitionsResponse(topics=topics)
    names = requested or sorted(services.metadata.topics)
    first_partition, refused = 0, []
    if cursor is not None:
        names = [name for name in paced(names) if name >= cursor.topic_name]
    access = context.access(services)
    if access is not None:
        may_describe = partial(access.allows, Operation.DESCRIBE, ResourceType.TOPIC)
        refused = [name for name in paced(requested and names) if not may_describe(name)]
        names = [name for name in paced(names) if may_describe(name)]
    if cursor is not None:
        first_partition = cursor.partition_index if names and names[0] == cursor.topic_name else 0
    limit = min(request.response_partition_limit, services.config.max_request_partition_size_limit)
    response = _page(services.metadata, context.listener, names, first_partition, max(limit, 1))
    for topic in paced(response.topics):
        topic.topic_authorized_operations = context.authorized_operations(
            services, ResourceType.TOPIC, topic.name or ""
        )
    response.topics += [_missing_topic(ErrorCode.TOPIC_AUTHORIZATION_FAILED, name) for name in paced(refused)]
    return response


def _sorted_names(request: DescribeTopicPartitionsRequest) -> list[str]:
    """Return the requested names without duplicates. Parts are sorted, then merged, so that no turn is long."""
    parts = []
    for start in range(0, len(request.topics), SORTED_AT_ONCE):
        parts.append(sorted(topic.name for topic in request.topics[start : start + SORTED_AT_ONCE]))
        yield_if_due()
    names: list[str] = []
    for name in paced(merge(*parts)):
        if not names or name != names[-1]:
            names.append(name)
    return names


def _page(
    image: MetadataImage, listener: str, names: list[str], first_partition: int, limit: int
) -> DescribeTopicPartitionsResponse:
    """Return a page of these topics, at most `limit` partitions, starting with `first_partition` of the first topic."""
    topics: list[DescribeTopicPartitionsResponseTopic] = []
    for name in paced(names):
        if limit == 0:
            return DescribeTopicPartitionsResponse(
                topics=topics, next_cursor=Cursor(topic_name=name, partition_index=0)
            )
        topic = image.topics.get(name)
        if topic is None:
            is_valid = topic_name_error(name) is None
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if is_valid else ErrorCode.INVALID_TOPIC_EXCEPTION
            topics.append(_missing_topic(code, name))
            first_partition = 0
            continue
        topic = image.resolve(topic)
        end = min(first_partition + limit, len(topic.partitions))
        topics.append(_topic(image, listener, topic, first_partition, end))
        if end < len(topic.partitions):
            return DescribeTopicPartitionsResponse(
                topics=topics, next_cursor=Cursor(topic_name=name, partition_index=end)
            )
        limit -= max(end - first_partition, 0)
        first_partition = 0
    return DescribeTopicPartitionsResponse(topics=topics)


def _missing_topic(code: ErrorCode, name: str) -> DescribeTopicPartitionsResponseTopic:
    is_internal = name in INTERNAL_TOPICS and code is not ErrorCode.TOPIC_AUTHORIZATION_FAILED
    return DescribeTopicPartitionsResponseTopic(error_code=code, name=name, is_internal=is_internal)


def _topic(
    image: MetadataImage, listener: str, topic: TopicImage, first: int, end: int
) -> DescribeTopicPartitionsResponseTopic:
    """Return a topic with the partitions from `first` to `end`, exclusive."""
    partitions = [
        _partition(image, image.endpoints(listener), index, topic.partitions[index])
        for index in paced(range(first, end))
    ]
    return DescribeTopicPartitionsResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.internal,
        partitions=partitions,
    )


def _partition(
    image: MetadataImage, endpoints: Mapping[int, BrokerEndpoint], index: int, partition: PartitionRegistration
) -> DescribeTopicPartitionsResponsePartition:
    return DescribeTopicPartitionsResponsePartition(
        error_code=ErrorCode.NONE if partition.leader in image.brokers else ErrorCode.LEADER_NOT_AVAILABLE,
        partition_index=index,
        leader_id=partition.leader if partition.leader in endpoints else NO_LEADER,
        leader_epoch=partition.leader_epoch,
        replica_nodes=partition.replicas,
        isr_nodes=partition.isr,
        eligible_leader_replicas=partition.elr,
        last_known_elr=[] if partition.is_recovering else partition.last_known_elr,
        offline_replicas=[replica for replica in partition.replicas if replica not in endpoints],
    )
