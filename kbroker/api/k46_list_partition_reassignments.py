"""ListPartitionReassignments (key 46), version 0: the partitions that are being moved to other brokers (KIP-455).

Null topics means all. Topics and partitions that do not exist are not errors, as in Apache Kafka. timeout_ms is
ignored.
"""

from collections.abc import Iterable, Mapping

from kbroker.api.context import RequestContext, Services
from kbroker.common import KafkaError
from kbroker.metadata.image import TopicImage
from kbroker.runtime.turns import paced
from protocol.messages.k46_list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
)

# A request without topics means all partitions.
RUNS_IN_TURNS = True


async def handle(
    services: Services, context: RequestContext, request: ListPartitionReassignmentsRequest
) -> ListPartitionReassignmentsResponse:
    try:
        await services.controller.reassignments.check_current()
    except KafkaError as error:
        return failed_response(request, error)
    requested = _requested(services.metadata.topics, request)
    return ListPartitionReassignmentsResponse(error_message=None, topics=_ongoing(requested))


def _requested(
    topics: Mapping[str, TopicImage], request: ListPartitionReassignmentsRequest
) -> list[tuple[TopicImage, Iterable[int]]]:
    if request.topics is None:
        return [(topic, range(len(topic.partitions))) for topic in topics.values()]
    return [(topics[topic.name], topic.partition_indexes) for topic in paced(request.topics) if topic.name in topics]


def failed_response(
    request: ListPartitionReassignmentsRequest, error: KafkaError
) -> ListPartitionReassignmentsResponse:
    """Return the response with an error, and with what was requested, as in Apache Kafka."""
    topics = [
        OngoingTopicReassignment(
            name=topic.name,
            partitions=[
                OngoingPartitionReassignment(partition_index=index) for index in paced(topic.partition_indexes)
            ],
        )
        for topic in paced(request.topics or ())
    ]
    return ListPartitionReassignmentsResponse(error_code=error.code, error_message=error.message, topics=topics)


def _ongoing(requested: Iterable[tuple[TopicImage, Iterable[int]]]) -> list[OngoingTopicReassignment]:
    topics = []
    for topic, indexes in requested:
        partitions = []
        for index in paced(indexes):
            partition = topic.partitions[index] if 0 <= index < len(topic.partitions) else None
            if partition is not None and partition.is_reassigning:
                partitions.append(
                    OngoingPartitionReassignment(
                        partition_index=index,
                        replicas=partition.replicas,
                        adding_replicas=partition.adding_replicas,
                        removing_replicas=partition.removing_replicas,
                    )
                )
        if partitions:
            topics.append(OngoingTopicReassignment(name=topic.name, partitions=partitions))
    return topics
