"""DescribeConfigs, against recorded responses of Apache Kafka 4.4.0; documentation and loggers, which differ."""

import logging
from typing import Any

import pytest

from protocol.apis import APIS, ApiKey
from protocol.errors import ErrorCode
from protocol.messages.k19_create_topics import CreatableTopic, CreatableTopicConfig
from protocol.messages.k32_describe_configs import DescribeConfigsResource
from tests.unit.support.async_test import async_test
from tests.unit.support.config_recording import replay
from tests.unit.support.handlers import Handlers, start_handlers

TOPIC, BROKER, LOGGER, METRICS, GROUP = 2, 4, 8, 16, 32
ALL_VERSIONS = range(APIS[ApiKey.DESCRIBE_CONFIGS].min_version, APIS[ApiKey.DESCRIBE_CONFIGS].max_version + 1)


async def describe(handlers: Handlers, version: int, resource_type: int, name: str, *keys: str, **fields: Any) -> Any:
    resource = DescribeConfigsResource(
        resource_type=resource_type, resource_name=name, configuration_keys=list(keys) or None
    )
    response = await handlers.request(ApiKey.DESCRIBE_CONFIGS, version, resources=[resource], **fields)
    assert response.throttle_time_ms == 0
    (result,) = response.results
    assert (result.resource_type, result.resource_name) == (resource_type, name)
    return result


@async_test
async def test_the_responses_are_those_of_kafka():
    steps, differences = await replay("describe")
    assert steps > 40
    assert differences == []


@pytest.mark.parametrize("version", ALL_VERSIONS)
@async_test
async def test_a_broker_in_every_version(version: int):
    handlers = await start_handlers()
    result = await describe(handlers, version, BROKER, "1", "log.retention.hours", include_synonyms=True)
    (config,) = result.configs
    assert (config.name, config.value, config.read_only) == ("log.retention.hours", "336", True)
    assert (config.config_source, config.is_sensitive) == (5, False)
    assert [(synonym.name, synonym.value, synonym.source) for synonym in config.synonyms] == [
        ("log.retention.hours", "336", 5)
    ]
    assert config.config_type == (3 if version >= 3 else 0)


@async_test
async def test_topics_of_a_request_have_their_own_configs():
    """Equal ones are described once."""
    handlers = await start_handlers()
    retentions = {"a": "1", "b": "2", "c": "1", "d": None}
    topics = [
        CreatableTopic(name=name, num_partitions=1, replication_factor=1, configs=retention_of(value))
        for name, value in retentions.items()
    ]
    await handlers.request(ApiKey.CREATE_TOPICS, 5, topics=topics)
    resources = [
        DescribeConfigsResource(resource_type=TOPIC, resource_name=name, configuration_keys=keys)
        for name in (*retentions, "absent")
        for keys in (["retention.ms"], ["retention.ms", "cleanup.policy"])
    ]
    response = await handlers.request(ApiKey.DESCRIBE_CONFIGS, 4, resources=resources)
    described = [
        (result.resource_name, result.error_code, {config.name: config.value for config in result.configs})
        for result in response.results
    ]
    assert described == [
        *[
            (name, 0, {"retention.ms": value or "1209600000"} | more)
            for name, value in retentions.items()
            for more in ({}, {"cleanup.policy": "delete"})
        ],
        *[("absent", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, {})] * 2,
    ]


def retention_of(value: str | None) -> list[CreatableTopicConfig]:
    return [] if value is None else [CreatableTopicConfig(name="retention.ms", value=value)]


@async_test
async def test_documentation_is_returned_on_request():
    handlers = await start_handlers()
    for resource_type, name in ((BROKER, "1"), (GROUP, "g"), (METRICS, "m")):
        undocumented = await describe(handlers, 4, resource_type, name)
        assert {config.documentation for config in undocumented.configs} == {None}
        documented = await describe(handlers, 4, resource_type, name, include_documentation=True)
        assert all(config.documentation for config in documented.configs)


@async_test
async def test_sensitive_values_are_not_returned():
    handlers = await start_handlers(kbroker_zookeeper_digest="secret")
    result = await describe(handlers, 4, BROKER, "1", "kbroker.zookeeper.digest", include_synonyms=True)
    (config,) = result.configs
    assert config.is_sensitive
    assert config.value is None
    assert [(synonym.value, synonym.source) for synonym in config.synonyms] == [(None, 4)]


@async_test
async def test_the_level_of_a_logger():
    logging.getLogger("kbroker.test").setLevel(logging.WARNING)
    result = await describe(await start_handlers(), 4, LOGGER, "1", "kbroker.test")
    (config,) = result.configs
    assert (config.value, config.config_source, config.read_only) == ("WARN", 6, False)


@async_test
async def test_an_unknown_resource_type_is_rejected():
    result = await describe(await start_handlers(), 4, 99, "x")
    assert (result.error_code, result.error_message) == (42, "Unknown resource type 99")
