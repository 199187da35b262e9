"""AlterConfigs, against recorded responses of Apache Kafka 4.4.0."""

import pytest

from kbroker.metadata.topics.topic_requests import NewTopic
from protocol.apis import APIS, ApiKey
from protocol.messages.k33_alter_configs import AlterableConfig, AlterConfigsResource
from tests.unit.support.async_test import async_test
from tests.unit.support.config_recording import replay
from tests.unit.support.handlers import start_handlers

ALL_VERSIONS = range(APIS[ApiKey.ALTER_CONFIGS].min_version, APIS[ApiKey.ALTER_CONFIGS].max_version + 1)


def topic(name: str, **configs: str) -> AlterConfigsResource:
    named = [AlterableConfig(name=key.replace("_", "."), value=value) for key, value in configs.items()]
    return AlterConfigsResource(resource_type=2, resource_name=name, configs=named)


@async_test
async def test_the_responses_are_those_of_kafka():
    steps, differences = await replay("replace")
    assert steps > 15
    assert differences == []


@pytest.mark.parametrize("version", ALL_VERSIONS)
@async_test
async def test_configs_that_are_not_in_the_request_are_reset(version: int):
    handlers = await start_handlers()
    await handlers.member.controller.topics.create_topics([NewTopic("t", 1, configs=[("segment.ms", "5000")])], False)
    response = await handlers.request(ApiKey.ALTER_CONFIGS, version, resources=[topic("t", retention_ms="7000")])
    (result,) = response.responses
    assert (result.error_code, result.error_message) == (0, None)
    assert (result.resource_type, result.resource_name) == (2, "t")
    assert handlers.member.image.overrides(2, "t") == {"retention.ms": "7000"}


@async_test
async def test_a_resource_that_is_named_twice_is_rejected_twice():
    handlers = await start_handlers()
    await handlers.member.controller.topics.create_topics([NewTopic("t", 1)], False)
    twice = [topic("t", segment_ms="5000"), topic("t", segment_ms="6000")]
    response = await handlers.request(ApiKey.ALTER_CONFIGS, 2, resources=twice)
    error = (42, "Each resource must appear at most once.")
    assert [(result.error_code, result.error_message) for result in response.responses] == [error, error]
    assert handlers.member.image.overrides(2, "t") == {}
