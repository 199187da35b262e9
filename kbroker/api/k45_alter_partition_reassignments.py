"""AlterPartitionReassignments (key 45), versions 0 and 1: move partitions to other brokers, or cancel that (KIP-455).

- A target of null cancels the reassignment in progress.
- Each partition has its own error. The others are written together.
- Version 1 can refuse targets with another replication factor (KIP-860).
- The response is sent when the reassignments have begun. As in Apache Kafka, a timeout of 0 is
  always exceeded.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from kbroker.api.context import RequestContext, Services
from kbroker.common import KafkaError
from kbroker.metadata.control_manager import PartitionOutcome
from kbroker.metadata.replication.partition_requests import RequestedReassignment
from kbroker.runtime.turns import paced
from protocol.errors import ErrorCode
from protocol.messages.k45_alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)


async def handle(
    services: Services, context: RequestContext, request: AlterPartitionReassignmentsRequest
) -> AlterPartitionReassignmentsResponse:
    if not request.topics:
        return AlterPartitionReassignmentsResponse(error_message="")
    if request.timeout_ms <= 0:
        return failed_response(request, KafkaError(ErrorCode.REQUEST_TIMED_OUT))
    may_change_factor = request.allow_replication_factor_change
    requested = [
        RequestedReassignment(topic.name, partition.partition_index, partition.replicas)
        for topic in paced(request.topics)
        for partition in paced(topic.partitions)
    ]
    try:
        outcomes = await services.controller.reassignments.alter_reassignments(requested, may_change_factor)
    except KafkaError as error:
        return failed_response(request, error)
    return AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=may_change_factor,
        error_message=None,
        responses=_results(request, outcomes),
    )


def failed_response(
    request: AlterPartitionReassignmentsRequest, error: KafkaError
) -> AlterPartitionReassignmentsResponse:
    """Return the response in which everything that was requested has this error."""
    outcomes = [
        PartitionOutcome(topic.name, partition.partition_index, error)
        for topic in paced(request.topics)
        for partition in paced(topic.partitions)
    ]
    return AlterPartitionReassignmentsResponse(
        error_code=error.code, error_message=error.message, responses=_results(request, outcomes)
    )


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
