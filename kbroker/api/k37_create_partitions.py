"""CreatePartitions (key 37), versions 0 to 3: a topic grows to `count` partitions; it never shrinks here.

The answer comes when the new partitions have their logs; `timeout_ms` is not looked at.
"""

from kbroker.api.context import RequestContext, Services
from kbroker.metadata.topics.create_partitions import NewPartitions
from protocol.errors import ErrorCode
from protocol.messages.k37_create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)


async def handle(
    services: Services, context: RequestContext, request: CreatePartitionsRequest
) -> CreatePartitionsResponse:
    specs = [_spec(topic) for topic in request.topics]
    results = await services.controller.create_partitions(specs, request.validate_only)
    return CreatePartitionsResponse(
        results=[
            CreatePartitionsTopicResult(
                name=result.name,
                error_code=result.error.code if result.error else ErrorCode.NONE,
                error_message=result.error.message if result.error else None,
            )
            for result in results
        ]
    )


def _spec(topic: CreatePartitionsTopic) -> NewPartitions:
    given = topic.assignments
    return NewPartitions(topic.name, topic.count, None if given is None else [row.broker_ids for row in given])
