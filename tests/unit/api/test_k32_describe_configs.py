"""DescribeConfigs as Apache Kafka 4.3.1 answers it; documentation and loggers, which differ, by themselves."""

import logging
from typing import Any

import pytest

from protocol.apis import APIS, ApiKey
from protocol.messages.k32_describe_configs import DescribeConfigsResource
from tests.unit.support.config_recording import play
from tests.unit.support.handlers import Handlers, run, start_handlers

TOPIC, BROKER, LOGGER, METRICS, GROUP = 2, 4, 8, 16, 32
ALL_VERSIONS = range(APIS[ApiKey.DESCRIBE_CONFIGS].min_version, APIS[ApiKey.DESCRIBE_CONFIGS].max_version + 1)


async def describe(handlers: Handlers, version: int, kind: int, name: str, *keys: str, **fields: Any) -> Any:
    resource = DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=list(keys) or None)
    answer = await handlers.request(ApiKey.DESCRIBE_CONFIGS, version, resources=[resource], **fields)
    assert answer.throttle_time_ms == 0
    (result,) = answer.results
    assert (result.resource_type, result.resource_name) == (kind, name)
    return result


def test_every_step_of_kafkas_story_is_described_as_kafka_does():
    async def story():
        steps, differences = await play("describe")
        assert steps > 40
        assert differences == []

    run(story)


@pytest.mark.parametrize("version", ALL_VERSIONS)
def test_a_broker_in_every_version(version: int):
    async def story():
        handlers = await start_handlers()
        result = await describe(handlers, version, BROKER, "1", "log.retention.hours", include_synonyms=True)
        (config,) = result.configs
        assert (config.name, config.value, config.read_only) == ("log.retention.hours", "336", True)
        assert (config.config_source, config.is_sensitive) == (5, False)
        assert [(one.name, one.value, one.source) for one in config.synonyms] == [("log.retention.hours", "336", 5)]
        assert config.config_type == (3 if version >= 3 else 0)

    run(story)


def test_documentation_comes_when_asked_for():
    async def story():
        handlers = await start_handlers()
        for kind, name in ((BROKER, "1"), (GROUP, "g"), (METRICS, "m")):
            silent = await describe(handlers, 4, kind, name)
            assert {config.documentation for config in silent.configs} == {None}
            told = await describe(handlers, 4, kind, name, include_documentation=True)
            assert all(config.documentation for config in told.configs)

    run(story)


def test_secrets_are_not_told():
    async def story():
        handlers = await start_handlers(ssl_keystore_password="secret")
        result = await describe(handlers, 4, BROKER, "1", "ssl.keystore.password", include_synonyms=True)
        (config,) = result.configs
        assert config.is_sensitive
        assert config.value is None
        assert [(one.value, one.source) for one in config.synonyms] == [(None, 4)]

    run(story)


def test_loggers_have_levels():
    async def story():
        logging.getLogger("kbroker.test").setLevel(logging.WARNING)
        result = await describe(await start_handlers(), 4, LOGGER, "1", "kbroker.test")
        (config,) = result.configs
        assert (config.value, config.config_source, config.read_only) == ("WARN", 6, False)

    run(story)


def test_an_unknown_type_is_refused():
    async def story():
        result = await describe(await start_handlers(), 4, 99, "x")
        assert (result.error_code, result.error_message) == (42, "Unknown resource type 99")

    run(story)
