"""DescribeTopicPartitions (key 75), version 0 (KIP-966): topics in order of their names, a page at a time.

- No topics named means all. `cursor` is where a page begins; with named topics it must be at one of them.
- A page has at most `response_partition_limit` partitions, at least 1, and no more than
  max.request.partition.size.limit. Topics that are not found do not count.
- Eligible leader replicas are always empty until there are clusters.
"""

from kbroker.api.authorized_operations import TOPIC_OPERATIONS
from kbroker.api.context import RequestContext, Services
from kbroker.common import NO_LEADER
from kbroker.metadata.image import MetadataImage, PartitionRegistration, TopicImage
from kbroker.metadata.topics.internal_topics import INTERNAL_TOPICS
from kbroker.metadata.topics.topic_names import topic_name_error
from protocol.errors import ErrorCode
from protocol.messages.k75_describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)


def handle(
    services: Services, context: RequestContext, request: DescribeTopicPartitionsRequest
) -> DescribeTopicPartitionsResponse:
    cursor = request.cursor
    named = {topic.name for topic in request.topics}
    if cursor is not None and (cursor.partition_index < 0 or (named and cursor.topic_name not in named)):
        return DescribeTopicPartitionsResponse(
            topics=[_unknown(name, ErrorCode.INVALID_REQUEST) for name in sorted(named)]
        )
    names = sorted(named or services.metadata.topics)
    first = 0
    if cursor is not None:
        names = [name for name in names if name >= cursor.topic_name]
        first = cursor.partition_index if names and names[0] == cursor.topic_name else 0
    limit = min(request.response_partition_limit, services.config.max_request_partition_size_limit)
    return _page(services.metadata, names, first, max(limit, 1))


def _page(image: MetadataImage, names: list[str], first: int, room: int) -> DescribeTopicPartitionsResponse:
    topics: list[DescribeTopicPartitionsResponseTopic] = []
    for name in names:
        topic = image.topics.get(name)
        if topic is None:
            known = topic_name_error(name) is None
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if known else ErrorCode.INVALID_TOPIC_EXCEPTION
            topics.append(_unknown(name, code))
            first = 0
            continue
        if room == 0:
            return DescribeTopicPartitionsResponse(
                topics=topics, next_cursor=Cursor(topic_name=name, partition_index=0)
            )
        end = min(first + room, len(topic.partitions))
        topics.append(_found(image, topic, first, end))
        if end < len(topic.partitions):
            return DescribeTopicPartitionsResponse(
                topics=topics, next_cursor=Cursor(topic_name=name, partition_index=end)
            )
        room -= max(end - first, 0)
        first = 0
    return DescribeTopicPartitionsResponse(topics=topics)


def _unknown(name: str, code: ErrorCode) -> DescribeTopicPartitionsResponseTopic:
    answer = DescribeTopicPartitionsResponseTopic(error_code=code, name=name, is_internal=name in INTERNAL_TOPICS)
    if code != ErrorCode.INVALID_REQUEST:
        answer.topic_authorized_operations = TOPIC_OPERATIONS
    return answer


def _found(image: MetadataImage, topic: TopicImage, first: int, end: int) -> DescribeTopicPartitionsResponseTopic:
    return DescribeTopicPartitionsResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.internal,
        partitions=[_partition(image, index, topic.partitions[index]) for index in range(first, end)],
        topic_authorized_operations=TOPIC_OPERATIONS,
    )


def _partition(
    image: MetadataImage, index: int, state: PartitionRegistration
) -> DescribeTopicPartitionsResponsePartition:
    led = state.leader in image.brokers
    return DescribeTopicPartitionsResponsePartition(
        error_code=ErrorCode.NONE if led else ErrorCode.LEADER_NOT_AVAILABLE,
        partition_index=index,
        leader_id=state.leader if led else NO_LEADER,
        leader_epoch=state.leader_epoch,
        replica_nodes=state.replicas,
        isr_nodes=state.isr,
        eligible_leader_replicas=state.elr,
        last_known_elr=state.last_known_elr,
        offline_replicas=image.offline_replicas(state),
    )
