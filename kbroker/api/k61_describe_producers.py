"""DescribeProducers (key 61), version 0 (KIP-664): the producers in the producer state of partitions.

Followers respond too, so that kafka-transactions can check all replicas of a broker. A view has an empty list instead
of an error, because kafka-transactions asks for all topics.
"""

from functools import cache, partial
from typing import Any

from kbroker.api.authorization import DEFAULT_TEXT, Request, each, may
from kbroker.api.context import Handle, RequestContext, Services
from kbroker.authorization.acl import Operation, ResourceType
from kbroker.common import KafkaError
from kbroker.metadata.topics.topic_names import topic_name_error
from kbroker.runtime.turns import paced
from protocol.errors import ErrorCode
from protocol.messages.k61_describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)

# A partition may have 100,000 producers.
RUNS_IN_TURNS = True


def handle(services: Services, context: RequestContext, request: DescribeProducersRequest) -> DescribeProducersResponse:
    response = DescribeProducersResponse()
    # A partition that is named more than once has one result in memory.
    describe = cache(partial(_partition, services))
    for topic in paced(request.topics):
        # One string for all partitions: it contains the name, so 100,000 copies could take gigabytes.
        fault = topic_name_error(topic.name)
        name_error = None if fault is None else f"Topic name is invalid: {fault}"
        partitions = [describe(topic.name, name_error, index) for index in paced(topic.partition_indexes)]
        response.topics.append(TopicResponse(name=topic.name, partitions=partitions))
    return response


_may_read = may(Operation.READ, ResourceType.TOPIC, "name", DEFAULT_TEXT)


def authorize(checked: Request, handle: Handle) -> Any:
    # As in Kafka, an invalid name has its own error.
    return each("topics", lambda request, topic: None if topic_name_error(topic.name) else _may_read(request, topic))(
        checked, handle
    )


def failed_response(
    context: RequestContext, request: DescribeProducersRequest, error: KafkaError
) -> DescribeProducersResponse:
    topics = []
    for topic in paced(request.topics):
        results = [
            PartitionResponse(partition_index=index, error_code=error.code, error_message=error.message)
            for index in paced(topic.partition_indexes)
        ]
        topics.append(TopicResponse(name=topic.name, partitions=results))
    return DescribeProducersResponse(topics=topics)


def _partition(services: Services, topic: str, name_error: str | None, index: int) -> PartitionResponse:
    if name_error is not None:
        return PartitionResponse(
            partition_index=index, error_code=ErrorCode.INVALID_TOPIC_EXCEPTION, error_message=name_error
        )
    if topic not in services.metadata.topics:
        return PartitionResponse(
            partition_index=index,
            error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            error_message="This server does not host this topic-partition.",
        )
    partition, _ = services.replicas.find_readable(topic, index)
    if partition is None:
        code = services.replicas.missing_error(topic, index)
        return PartitionResponse(partition_index=index, error_code=code, error_message=None)
    is_view = bool(services.metadata.topics[topic].view_of)
    active = () if is_view else partition.log.producers.active()
    producers = [ProducerState(**producer._asdict()) for producer in paced(active)]
    return PartitionResponse(partition_index=index, active_producers=producers)
