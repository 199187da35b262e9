"""CreateTopics (key 19), versions 2 to 7: create topics with their partitions and configs.

- Each topic is created independently: an invalid one does not prevent the others.
- Version 5 adds the effective configs and the numbers of partitions and replicas to the response, version 7 the topic
  id. With validate_only the response is the same, and no topic is created.
- The response is sent when this broker has opened the logs. timeout_ms is ignored: this takes no longer than a write to
  the coordination service.
"""

from collections.abc import Iterable
from functools import partial

from kbroker.api.context import RequestContext, Services
from kbroker.api.large_responses import MAX_ALTERED_AT_ONCE, MAX_PARTITIONS_AT_ONCE
from kbroker.config.describe import describe_topic
from kbroker.metadata.topics.create_topics import NewTopic
from kbroker.metadata.topics.topic_control_manager import CreateTopicResult
from kbroker.runtime.slices import Steps, drained, each, in_slices, release
from protocol.errors import ErrorCode
from protocol.messages.k19_create_topics import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)

FIRST_WITH_CONFIGS = 5


async def handle(services: Services, context: RequestContext, request: CreateTopicsRequest) -> CreateTopicsResponse:
    slices = context.slices
    topics = await in_slices(slices, _new_topics(request.topics))
    results = await services.controller.topics.create_topics(topics, request.validate_only, slices)
    await in_slices(slices, release(topics))
    response = await in_slices(slices, each(partial(_result, services, context.version), drained(results)))
    return CreateTopicsResponse(topics=response)


def is_large(services: Services, context: RequestContext, request: CreateTopicsRequest) -> bool:
    topics = request.topics
    return len(topics) > MAX_ALTERED_AT_ONCE or any(topic.num_partitions > MAX_PARTITIONS_AT_ONCE for topic in topics)


def _new_topics(topics: Iterable[CreatableTopic]) -> Steps[list[NewTopic]]:
    new = []
    for topic in topics:
        assignments = yield from each(lambda row: (row.partition_index, row.broker_ids), topic.assignments)
        configs = yield from each(lambda config: (config.name, config.value), topic.configs)
        new.append(NewTopic(topic.name, topic.num_partitions, topic.replication_factor, assignments, configs))
        yield
    return new


def _result(services: Services, version: int, result: CreateTopicResult) -> CreatableTopicResult:
    error = result.error
    if error is not None:
        return CreatableTopicResult(name=result.name, error_code=error.code, error_message=error.message, configs=[])
    return CreatableTopicResult(
        name=result.name,
        topic_id=result.topic_id,
        error_code=ErrorCode.NONE,
        error_message=None,
        num_partitions=result.partitions,
        replication_factor=result.replication_factor,
        configs=_configs(services, result) if version >= FIRST_WITH_CONFIGS else [],
    )


def _configs(services: Services, result: CreateTopicResult) -> list[CreatableTopicConfigs]:
    return [
        CreatableTopicConfigs(
            name=entry.key.name,
            # An override has its text from the request here, and its parsed value in DescribeConfigs, as in Kafka.
            value=result.configs.get(entry.key.name, entry.value),
            read_only=entry.read_only,
            config_source=entry.source,
            is_sensitive=entry.key.is_sensitive,
        )
        for entry in describe_topic(result.configs, services.config)
    ]
