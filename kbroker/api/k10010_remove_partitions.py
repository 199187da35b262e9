"""RemovePartitions (key 10010), version 0: remove or close the highest partitions of a topic. Kafka has no such API.

- Partitions with records are closing, until retention has emptied them; then, or if they are empty, they retire:
  metadata/topics/close_partitions.py. With the number of partitions that the topic has, the closing is cancelled.
- Partitions that cannot forward records, because of the topic's configs, are removed if they are empty. The steps, and
  why no record is lost, are in metadata/topics/remove_partitions.py.
- Producers wait while the leaders are asked, usually for milliseconds. For a partition that is gone they get
  UNKNOWN_TOPIC_OR_PARTITION, and refresh their metadata.
- INVALID_PARTITIONS: the topic has no more than `partition_count`. -1 changes nothing; the response has the partitions
  that are closing, or retired.
- ApiVersions does not list it, so only kbroker's command line sends it.
"""

from __future__ import annotations

from kbroker.api.context import RequestContext, Services
from kbroker.common import KafkaError
from kbroker.metadata.topics.close_partitions import first_closing
from kbroker.queues.closing.partition_removal import PartitionRemoval
from protocol.errors import ErrorCode
from protocol.messages.k10010_remove_partitions import RemovePartitionsRequest, RemovePartitionsResponse

DESCRIBE = -1


async def handle(
    services: Services, context: RequestContext, request: RemovePartitionsRequest
) -> RemovePartitionsResponse:
    if request.partition_count == DESCRIBE:
        return _describe(services, request.topic_name)
    removal = PartitionRemoval(
        services.environment,
        services.metadata,
        services.controller,
        services.replicas,
        services.peers,
        lambda: services.config,
    )
    try:
        outcome = await removal.alter(request.topic_name, request.partition_count)
    except KafkaError as error:
        return RemovePartitionsResponse(error_code=error.code, error_message=error.message)
    return RemovePartitionsResponse(outcome=outcome)


def _describe(services: Services, name: str) -> RemovePartitionsResponse:
    topic = services.metadata.topics.get(name)
    if topic is None:
        return RemovePartitionsResponse(error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    first = first_closing(topic)
    return RemovePartitionsResponse(first_closing=-1 if first is None else first)
