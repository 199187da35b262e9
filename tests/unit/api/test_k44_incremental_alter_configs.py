"""IncrementalAlterConfigs, against recorded responses of Apache Kafka 4.4.0, and where kbroker is stricter."""

import asyncio
import logging
from typing import Any

import pytest

from kbroker.metadata.image import BrokerRegistration
from kbroker.metadata.topics.topic_requests import NewTopic
from protocol.apis import APIS, ApiKey
from protocol.errors import ErrorCode
from protocol.messages.k44_incremental_alter_configs import AlterableConfig, AlterConfigsResource
from tests.unit.support.async_test import async_test
from tests.unit.support.config_recording import replay
from tests.unit.support.handlers import Handlers, start_handlers

SET, DELETE, APPEND, SUBTRACT = range(4)
TOPIC, BROKER, LOGGER = 2, 4, 8
API = APIS[ApiKey.INCREMENTAL_ALTER_CONFIGS]


async def alter(
    handlers: Handlers, resource_type: int, name: str, *ops: tuple[str, int, str | None], version: int = 1
) -> Any:
    configs = [AlterableConfig(name=config, config_operation=op, value=value) for config, op, value in ops]
    alteration = AlterConfigsResource(resource_type=resource_type, resource_name=name, configs=configs)
    response = await handlers.request(ApiKey.INCREMENTAL_ALTER_CONFIGS, version, resources=[alteration])
    assert response.throttle_time_ms == 0
    (result,) = response.responses
    return result.error_code, result.error_message


async def with_topic() -> Handlers:
    handlers = await start_handlers()
    await handlers.member.controller.topics.create_topics([NewTopic("t", 1)], False)
    return handlers


@async_test
async def test_the_responses_are_those_of_kafka():
    steps, differences = await replay("incremental")
    assert steps > 80
    assert differences == []


@pytest.mark.parametrize("version", range(API.min_version, API.max_version + 1))
@async_test
async def test_single_configs_are_altered_in_every_version(version: int):
    handlers = await with_topic()
    assert await alter(handlers, TOPIC, "t", ("segment.ms", SET, "5000"), version=version) == (0, None)
    assert await alter(handlers, TOPIC, "t", ("retention.ms", SET, "9"), version=version) == (0, None)
    assert await alter(handlers, TOPIC, "t", ("segment.ms", DELETE, None), version=version) == (0, None)
    assert handlers.member.image.overrides(TOPIC, "t") == {"retention.ms": "9"}


@async_test
async def test_concurrent_changes_are_all_kept():
    handlers = await with_topic()
    ops = [("segment.ms", SET, "5000"), ("retention.ms", SET, "9"), ("flush.ms", SET, "7")]
    await asyncio.gather(*(alter(handlers, TOPIC, "t", op) for op in ops))
    assert handlers.member.image.overrides(TOPIC, "t") == {name: value for name, _, value in ops}


@async_test
async def test_an_unknown_broker_config_is_rejected():
    """Kafka accepts it, since it may belong to a plugin class."""
    code, message = await alter(await start_handlers(), BROKER, "1", ("log.segment.byte", SET, "2000000"))
    assert code == 40
    assert message == "Unknown broker config name: log.segment.byte (did you mean log.segment.bytes?)"


@async_test
async def test_an_unknown_operation_is_rejected():
    """Kafka 4.3.1 returns UNKNOWN_SERVER_ERROR."""
    error = await alter(await with_topic(), TOPIC, "t", ("segment.ms", 4, "5000"))
    assert error == (42, "Unknown operation 4 for config segment.ms")


@async_test
async def test_listeners_cannot_be_altered():
    error = await alter(await start_handlers(), BROKER, "1", ("listeners", SET, "PLAINTEXT://127.0.0.1:1"))
    assert error == (42, "Cannot update these configs dynamically: [listeners]")


@async_test
async def test_a_config_without_effect_is_stored_with_a_warning(caplog: pytest.LogCaptureFixture):
    handlers = await with_topic()
    assert await alter(handlers, TOPIC, "t", ("preallocate", SET, "true"), ("retention.ms", SET, "9")) == (0, None)
    assert handlers.member.image.overrides(TOPIC, "t") == {"preallocate": "true", "retention.ms": "9"}
    assert [record.message for record in caplog.records] == [
        'config without effect reason="preallocate=true is accepted, but has no effect: '
        'segments grow as they are written"'
    ]


@async_test
async def test_log_levels_can_be_altered():
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


@async_test
async def test_a_broker_that_is_away_is_cordoned_by_another_one():
    """It cannot be asked itself. Any other config of it stays its own."""
    handlers = await start_handlers()
    unexpected = (ErrorCode.INVALID_REQUEST, "Unexpected broker id, expected 1, but received 7")
    assert await alter(handlers, BROKER, "7", ("cordoned.log.dirs", SET, "*")) == unexpected
    handlers.services.metadata.fenced_brokers[7] = BrokerRegistration(7, "h", 9092)
    assert await alter(handlers, BROKER, "7", ("cordoned.log.dirs", SET, "*")) == (ErrorCode.NONE, None)
    assert handlers.services.metadata.overrides(BROKER, "7") == {"cordoned.log.dirs": "*"}
    assert await alter(handlers, BROKER, "7", ("log.cleaner.threads", SET, "2")) == unexpected
    both = (("cordoned.log.dirs", DELETE, None), ("log.cleaner.threads", SET, "2"))
    assert await alter(handlers, BROKER, "7", *both) == unexpected
    assert await alter(handlers, BROKER, "7", ("cordoned.log.dirs", DELETE, None)) == (ErrorCode.NONE, None)
    assert handlers.services.metadata.overrides(BROKER, "7") == {}
