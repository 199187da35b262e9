"""CreatePartitions (key 37), versions 0 to 3: increase the number of partitions of topics.

- Each topic is handled independently. With validate_only no partition is added.
- From version 3 on topics beyond the quota of the client get THROTTLING_QUOTA_EXCEEDED (KIP-599).
- The response is sent when this broker has opened the logs. timeout_ms is ignored: this takes no longer than a write to
  the coordination service.
"""

from kbroker.api.context import RequestContext, Services, mutation_quota
from kbroker.api.response_errors import failed_rows_response
from kbroker.metadata.topics.topic_control_manager import CreatePartitionsResult
from kbroker.metadata.topics.topic_requests import NewPartitions
from kbroker.runtime.turns import paced
from protocol.errors import ErrorCode
from protocol.messages.k37_create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)

failed_response = failed_rows_response

FORWARDED = True
# Each topic takes about 0.3 ms.
RUNS_IN_TURNS = True

FIRST_WITH_STRICT_QUOTA = 3


async def handle(
    services: Services, context: RequestContext, request: CreatePartitionsRequest
) -> CreatePartitionsResponse:
    if services.controller_channel is None:
        # No other broker could have the logs.
        services.replicas.write_health.require_writable()
    topics = [_new_partitions(topic) for topic in paced(request.topics)]
    quota = mutation_quota(services, context, FIRST_WITH_STRICT_QUOTA)
    results = await services.controller.topics.create_partitions(topics, request.validate_only, quota)
    return CreatePartitionsResponse(
        throttle_time_ms=quota.throttle_ms, results=[_result(result) for result in paced(results)]
    )


def _result(result: CreatePartitionsResult) -> CreatePartitionsTopicResult:
    return CreatePartitionsTopicResult(
        name=result.name,
        error_code=result.error.code if result.error else ErrorCode.NONE,
        error_message=result.error.message if result.error else None,
    )


def _new_partitions(topic: CreatePartitionsTopic) -> NewPartitions:
    assignments = None if topic.assignments is None else [row.broker_ids for row in topic.assignments]
    return NewPartitions(topic.name, topic.count, assignments)
