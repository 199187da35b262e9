"""Partitions on their way to other brokers (KIP-455): AlterPartitionReassignments (key 45), versions 0 and 1, and
ListPartitionReassignments (key 46), version 0.

- AlterPartitionReassignments: a target of null cancels the reassignment in progress. Each partition has its own error.
  The others are written together. Version 1 can refuse targets with another replication factor (KIP-860). The response
  is sent when the reassignments have begun. As in Apache Kafka, a timeout of 0 is always exceeded.
- ListPartitionReassignments: null topics means all. Topics and partitions that do not exist are not errors, as in
  Apache Kafka. timeout_ms is ignored.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice

from kbroker.api.context import RequestContext, Services
from kbroker.common import KafkaError
from kbroker.metadata.control_manager import PartitionOutcome
from kbroker.metadata.image import TopicImage
from kbroker.metadata.replication.partition_requests import RequestedReassignment
from kbroker.runtime.turns import paced
from protocol.apis import ApiKey
from protocol.errors import ErrorCode
from protocol.messages.k45_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)

FORWARDED = True
# A list without topics means all partitions.
RUNS_IN_TURNS = {ApiKey.LIST_PARTITION_REASSIGNMENTS}


async def alter_partition_reassignments(
    services: Services, context: RequestContext, request: AlterPartitionReassignmentsRequest
) -> AlterPartitionReassignmentsResponse:
    if not request.topics:
        return AlterPartitionReassignmentsResponse(error_message="")
    if request.timeout_ms <= 0:
        raise KafkaError(ErrorCode.REQUEST_TIMED_OUT)
    may_change_factor = request.allow_replication_factor_change
    requested = [
        RequestedReassignment(topic.name, partition.partition_index, partition.replicas)
        for topic in paced(request.topics)
        for partition in paced(topic.partitions)
    ]
    outcomes = await services.controller.reassignments.alter_reassignments(requested, may_change_factor)
    return AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=may_change_factor, error_message=None, responses=_results(request, outcomes)
    )


async def list_partition_reassignments(
    services: Services, context: RequestContext, request: ListPartitionReassignmentsRequest
) -> ListPartitionReassignmentsResponse:
    await services.controller.reassignments.check_current()
    requested = _requested(services.metadata.topics, request)
    return ListPartitionReassignmentsResponse(error_message=None, topics=_ongoing(requested))


def failed_response(
    context: RequestContext,
    request: AlterPartitionReassignmentsRequest | ListPartitionReassignmentsRequest,
    error: KafkaError,
) -> AlterPartitionReassignmentsResponse | ListPartitionReassignmentsResponse:
    """Return the response with an error, and with what was requested, as in Apache Kafka."""
    if isinstance(request, AlterPartitionReassignmentsRequest):
        outcomes = [
            PartitionOutcome(topic.name, partition.partition_index, error)
            for topic in paced(request.topics)
            for partition in paced(topic.partitions)
        ]
        return AlterPartitionReassignmentsResponse(
            error_code=error.code, error_message=error.message, responses=_results(request, outcomes)
        )
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


def _results(
    request: AlterPartitionReassignmentsRequest, outcomes: Sequence[PartitionOutcome]
) -> list[ReassignableTopicResponse]:
    remaining = iter(outcomes)
    topics = []
    for topic in paced(request.topics):
        partitions = [_partition_result(outcome) for outcome in paced(islice(remaining, len(topic.partitions)))]
        topics.append(ReassignableTopicResponse(name=topic.name, partitions=partitions))
    return topics


def _partition_result(outcome: PartitionOutcome) -> ReassignablePartitionResponse:
    error = outcome.error
    return ReassignablePartitionResponse(
        partition_index=outcome.partition,
        error_code=error.code if error else ErrorCode.NONE,
        error_message=error.message if error else None,
    )


def _requested(
    topics: Mapping[str, TopicImage], request: ListPartitionReassignmentsRequest
) -> list[tuple[TopicImage, Iterable[int]]]:
    if request.topics is None:
        return [(topic, range(len(topic.partitions))) for topic in topics.values()]
    return [(topics[topic.name], topic.partition_indexes) for topic in paced(request.topics) if topic.name in topics]


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


HANDLERS = {
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: alter_partition_reassignments,
    ApiKey.LIST_PARTITION_REASSIGNMENTS: list_partition_reassignments,
}
