"""RemovePartitions (key 10010), version 0: remove or close the highest partitions of a topic. Kafka has no such API.

- Partitions with records close, and retire when retention has deleted the records; empty ones retire at once
  (queues/closing/closing_partitions.py). A request with the current number of partitions cancels the closing.
- Partitions that cannot forward records, because of the topic's configs, are removed if they are empty
  (queues/closing/closing_partitions.py has the steps, and why no record is lost).
- Producers wait while the controller asks the leaders, usually for milliseconds. For a removed partition they get
  UNKNOWN_TOPIC_OR_PARTITION, and refresh their metadata.
- INVALID_PARTITIONS: the topic has at most `partition_count` partitions.
- With `partition_count` -1 nothing changes; the response has the closing and the retired partitions.
- ApiVersions does not list it, so only kbroker's command line sends it.
"""

from typing import Any

from kbroker.api.authorization import Request, one
from kbroker.api.context import Handle, RequestContext, Services
from kbroker.authorization.acl import Operation, ResourceType
from kbroker.common import KafkaError
from kbroker.metadata.topics.closing_checks import first_closing
from protocol.errors import ErrorCode
from protocol.messages.k10010_remove_partitions import RemovePartitionsRequest, RemovePartitionsResponse

FORWARDED = True
DESCRIBE = -1


async def handle(
    services: Services, context: RequestContext, request: RemovePartitionsRequest
) -> RemovePartitionsResponse:
    if request.partition_count == DESCRIBE:
        return _describe(services, request.topic_name)
    outcome = await services.partition_removal.alter(request.topic_name, request.partition_count)
    return RemovePartitionsResponse(outcome=outcome)


def authorize(checked: Request, handle: Handle) -> Any:
    operation = Operation.DESCRIBE if checked.body.partition_count == DESCRIBE else Operation.ALTER
    return one(operation, ResourceType.TOPIC, "topic_name")(checked, handle)


def _describe(services: Services, name: str) -> RemovePartitionsResponse:
    topic = services.metadata.topics.get(name)
    if topic is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    first = first_closing(topic)
    return RemovePartitionsResponse(first_closing=-1 if first is None else first)
