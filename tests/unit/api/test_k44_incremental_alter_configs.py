"""IncrementalAlterConfigs as Apache Kafka 4.3.1 answers it, and where kbroker is stricter."""

import asyncio
import logging
from typing import Any

import pytest

from kbroker.metadata.topics.create_topics import NewTopic
from protocol.apis import APIS, ApiKey
from protocol.messages.k44_incremental_alter_configs import AlterableConfig, AlterConfigsResource
from tests.unit.support.config_recording import play
from tests.unit.support.handlers import Handlers, run, start_handlers

SET, DELETE, APPEND, SUBTRACT = range(4)
TOPIC, BROKER, LOGGER = 2, 4, 8
API = APIS[ApiKey.INCREMENTAL_ALTER_CONFIGS]


async def alter(
    handlers: Handlers, kind: int, resource: str, *changes: tuple[str, int, str | None], version: int = 1
) -> Any:
    configs = [AlterableConfig(name=name, config_operation=op, value=value) for name, op, value in changes]
    asked = AlterConfigsResource(resource_type=kind, resource_name=resource, configs=configs)
    answer = await handlers.request(ApiKey.INCREMENTAL_ALTER_CONFIGS, version, resources=[asked])
    assert answer.throttle_time_ms == 0
    (response,) = answer.responses
    return response.error_code, response.error_message


async def with_topic() -> Handlers:
    handlers = await start_handlers()
    await handlers.member.controller.create_topics([NewTopic("t", 1)], False)
    return handlers


def test_every_step_of_kafkas_story_is_answered_as_kafka_does():
    async def story():
        steps, differences = await play("incremental")
        assert steps > 80
        assert differences == []

    run(story)


@pytest.mark.parametrize("version", range(API.min_version, API.max_version + 1))
def test_single_configs_change_in_every_version(version: int):
    async def story():
        handlers = await with_topic()
        assert await alter(handlers, TOPIC, "t", ("segment.ms", SET, "5000"), version=version) == (0, None)
        assert await alter(handlers, TOPIC, "t", ("retention.ms", SET, "9"), version=version) == (0, None)
        assert await alter(handlers, TOPIC, "t", ("segment.ms", DELETE, None), version=version) == (0, None)
        assert handlers.member.image.overrides(TOPIC, "t") == {"retention.ms": "9"}

    run(story)


def test_changes_that_arrive_together_are_all_kept():
    async def story():
        handlers = await with_topic()
        changes = [("segment.ms", SET, "5000"), ("retention.ms", SET, "9"), ("flush.ms", SET, "7")]
        await asyncio.gather(*(alter(handlers, TOPIC, "t", change) for change in changes))
        assert handlers.member.image.overrides(TOPIC, "t") == {name: value for name, _, value in changes}

    run(story)


def test_an_unknown_broker_config_is_refused():
    """Kafka takes it: there it may belong to a plugin class."""

    async def story():
        code, message = await alter(await start_handlers(), BROKER, "1", ("log.segment.byte", SET, "2000000"))
        assert code == 40
        assert message == "Unknown broker config name: log.segment.byte (did you mean log.segment.bytes?)"

    run(story)


def test_an_unknown_operation_is_refused():
    """Kafka 4.3.1 answers UNKNOWN_SERVER_ERROR."""

    async def story():
        answer = await alter(await with_topic(), TOPIC, "t", ("segment.ms", 4, "5000"))
        assert answer == (42, "Unknown operation 4 for config segment.ms")

    run(story)


def test_listeners_stay_as_they_were_opened():
    async def story():
        answer = await alter(await start_handlers(), BROKER, "1", ("listeners", SET, "PLAINTEXT://127.0.0.1:1"))
        assert answer == (42, "Cannot update these configs dynamically: [listeners]")

    run(story)


def test_a_config_without_effect_is_kept_with_a_warning(caplog: pytest.LogCaptureFixture):
    async def story():
        handlers = await with_topic()
        assert await alter(handlers, TOPIC, "t", ("preallocate", SET, "true"), ("retention.ms", SET, "9")) == (0, None)
        assert handlers.member.image.overrides(TOPIC, "t") == {"preallocate": "true", "retention.ms": "9"}
        assert [record.message for record in caplog.records] == [
            'config without effect reason="preallocate=true is accepted, but has no effect: '
            'segments grow as they are written"'
        ]

    run(story)


def test_log_levels_change_while_the_broker_runs():
    async def story():
        handlers = await start_handlers()
        logger = logging.getLogger("kbroker.test")
        assert await alter(handlers, LOGGER, "1", ("kbroker.test", SET, "debug")) == (0, None)
        assert logger.level == logging.DEBUG
        code, message = await alter(handlers, LOGGER, "1", ("kbroker.test", SET, "LOUD"))
        assert code == 40
        assert message.startswith("Cannot set the log level of kbroker.test to LOUD")
        assert await alter(handlers, LOGGER, "1", ("kbroker.test", DELETE, None)) == (0, None)
        assert logger.level == logging.NOTSET
        assert await alter(handlers, LOGGER, "1", ("nobody", SET, "INFO")) == (40, "Logger nobody does not exist!")
        assert (await alter(handlers, LOGGER, "1", ("kbroker", DELETE, None)))[0] == 42
        assert (await alter(handlers, LOGGER, "1", ("kbroker", APPEND, "INFO")))[0] == 42
        assert (await alter(handlers, LOGGER, "2", ("kbroker", SET, "INFO")))[0] == 42

    run(story)
