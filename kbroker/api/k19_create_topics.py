"""CreateTopics (key 19), versions 2 to 7: create topics with their partitions and configs.

- Each topic is created independently: an invalid one does not prevent the others.
- Version 5 adds the effective configs and the numbers of partitions and replicas to the response, version 7 the topic
  id. With validate_only the response is the same, and no topic is created.
- A client without DESCRIBE_CONFIGS on a topic gets topic_config_error_code instead of its configs. A view needs READ on
  its source, too.
- From version 6 on topics beyond the quota of the client get THROTTLING_QUOTA_EXCEEDED (KIP-599).
- The response is sent when this broker has opened the logs. timeout_ms is ignored: this takes no longer than a write to
  the coordination service.
- A single broker that cannot write to its disk creates no topics (KAFKA_STORAGE_ERROR). Kafka creates them, and takes
  the log directory offline.
"""

from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any

from kbroker.api.authorization import Request, after, each, may, refusal
from kbroker.api.context import Handle, RequestContext, Services, mutation_quota
from kbroker.authorization.acl import Operation, ResourceType
from kbroker.common import KafkaError
from kbroker.config.describe import describe_topic
from kbroker.config.queue_configs import VIEW_OF
from kbroker.metadata.topics.topic_control_manager import CreateTopicResult
from kbroker.metadata.topics.topic_requests import RESERVED_TOPIC, NewTopic
from kbroker.runtime.turns import drained, paced, release
from protocol.errors import ErrorCode
from protocol.messages.k19_create_topics import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)

FORWARDED = True
# Each topic takes about 0.3 ms, and may have 10,000 partitions.
RUNS_IN_TURNS = True

FIRST_WITH_CONFIGS = 5
FIRST_WITH_STRICT_QUOTA = 6


async def handle(services: Services, context: RequestContext, request: CreateTopicsRequest) -> CreateTopicsResponse:
    is_alone = services.controller_channel is None
    if is_alone:
        # No other broker could have the logs.
        services.replicas.write_health.require_writable()
    topics = [_new_topic(topic) for topic in paced(request.topics)]
    quota = mutation_quota(services, context, FIRST_WITH_STRICT_QUOTA)
    results = await services.controller.topics.create_topics(topics, request.validate_only, quota)
    release(topics)
    if is_alone and services.replicas.maintenance.unopened:
        await _add_errors_of_logs(services, results)
    return CreateTopicsResponse(
        throttle_time_ms=quota.throttle_ms,
        topics=[_result(services, context.version, result) for result in drained(results)],
    )


async def _add_errors_of_logs(services: Services, results: Sequence[CreateTopicResult]) -> None:
    """Turn topics whose logs could not be opened into errors: nobody can use them now."""
    replicas = services.replicas
    await replicas.write_health.check()
    reason = replicas.write_health.error or "see the broker's log"
    unopened = set(replicas.maintenance.unopened.values())
    for result in results:
        if result.error is None and result.topic_id in unopened:
            message = f"The topic exists, but has no log yet: {reason}. The broker tries again to open it."
            result.error = KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, message)


_may_create = may(
    Operation.CREATE, ResourceType.TOPIC, "name", "Authorization failed.", on_cluster=Operation.CREATE
)  # fmt: skip


def authorize(checked: Request, handle: Handle) -> Any:
    times_named = Counter(topic.name for topic in paced(checked.body.topics))

    def refuse(request: Request, topic: CreatableTopic) -> KafkaError | None:
        if times_named[topic.name] > 1 or topic.name == RESERVED_TOPIC:
            return None  # it is not created
        return _may_create(request, topic) or _refuse_source(request, topic)

    return after(each("topics", refuse)(checked, handle), partial(_hide_configs, checked))


def _refuse_source(request: Request, topic: CreatableTopic) -> KafkaError | None:
    """Return why the client may not create a view of a topic, whose records it could then read."""
    for config in paced(topic.configs):
        source = config.value if config.name == VIEW_OF else None
        if source and not request.access.allows(Operation.READ, ResourceType.TOPIC, source.strip()):
            return refusal(ResourceType.TOPIC, f"{VIEW_OF}: the source needs READ permission.")
    return None


def _hide_configs(checked: Request, response: CreateTopicsResponse) -> CreateTopicsResponse:
    for result in paced(response.topics):
        if not result.error_code and not checked.access.allows(
            Operation.DESCRIBE_CONFIGS, ResourceType.TOPIC, result.name
        ):
            result.topic_config_error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            result.num_partitions = result.replication_factor = -1
            result.configs = []
    return response


def failed_response(context: RequestContext, request: CreateTopicsRequest, error: KafkaError) -> CreateTopicsResponse:
    return CreateTopicsResponse(topics=[_failed(topic.name, error) for topic in request.topics])


def _failed(name: str, error: KafkaError) -> CreatableTopicResult:
    return CreatableTopicResult(name=name, error_code=error.code, error_message=error.message, configs=[])


def _new_topic(topic: CreatableTopic) -> NewTopic:
    assignments = [(row.partition_index, row.broker_ids) for row in paced(topic.assignments)]
    configs = [(config.name, config.value) for config in paced(topic.configs)]
    return NewTopic(topic.name, topic.num_partitions, topic.replication_factor, assignments, configs)


def _result(services: Services, version: int, result: CreateTopicResult) -> CreatableTopicResult:
    if result.error is not None:
        return _failed(result.name, result.error)
    entries = describe_topic(result.configs, services.config) if version >= FIRST_WITH_CONFIGS else ()
    return CreatableTopicResult(
        name=result.name,
        topic_id=result.topic_id,
        error_code=ErrorCode.NONE,
        error_message=None,
        num_partitions=result.partitions,
        replication_factor=result.replication_factor,
        configs=[
            CreatableTopicConfigs(
                name=entry.key.name,
                # An override has its text from the request here, and its parsed value in DescribeConfigs, as in Kafka.
                value=result.configs.get(entry.key.name, entry.value),
                read_only=entry.read_only,
                config_source=entry.source,
                is_sensitive=entry.key.is_sensitive,
            )
            for entry in entries
        ],
    )
