"""CreateTopics (key 19), versions 2 to 7.

- Each topic stands alone: one that is refused does not keep the others from being created.
- From version 5 on the answer tells the effective configs, and the partitions and replicas that were chosen;
  from version 7 on the topic id. With `validate_only` everything is told and nothing is made.
- The answer comes when the topics have their logs on this broker; `timeout_ms` is not looked at, for that
takes no
  longer than a write to the coordination service.
"""

from kbroker.api.context import RequestContext, Services
from kbroker.config.describe import describe_topic
from kbroker.metadata.controller import CreateTopicResult
from kbroker.metadata.topics.create_topics import NewTopic
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
    specs = [_spec(topic) for topic in request.topics]
    results = await services.controller.create_topics(specs, request.validate_only)
    return CreateTopicsResponse(topics=[_result(services, context.version, result) for result in results])


def _spec(topic: CreatableTopic) -> NewTopic:
    return NewTopic(
        topic.name,
        topic.num_partitions,
        topic.replication_factor,
        [(row.partition_index, row.broker_ids) for row in topic.assignments],
        [(config.name, config.value) for config in topic.configs],
    )


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
            # An override as it was given; DescribeConfigs has it as it was understood. So has Kafka.
            value=result.configs.get(entry.key.name, entry.value),
            read_only=entry.read_only,
            config_source=entry.source,
            is_sensitive=entry.key.is_sensitive,
        )
        for entry in describe_topic(result.configs, services.config)
    ]
