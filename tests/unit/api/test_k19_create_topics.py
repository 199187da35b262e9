"""CreateTopics in all versions. Its errors are in tests/unit/metadata/topics/test_create_topics.py."""

from typing import Any

import pytest

from protocol.apis import ApiKey
from protocol.messages.k19_create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
)
from tests.unit.support.async_test import async_test
from tests.unit.support.handlers import Handlers, start_handlers


def topic(name: str, partitions: int = 2, factor: int = 1, **configs: str) -> CreatableTopic:
    return CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=factor,
        configs=[CreatableTopicConfig(name=key.replace("_", "."), value=value) for key, value in configs.items()],
    )


async def create(handlers: Handlers, version: int, *topics: CreatableTopic, **fields: Any) -> Any:
    return await handlers.request(ApiKey.CREATE_TOPICS, version, topics=list(topics), **fields)


@pytest.mark.parametrize("version", range(2, 8))
@async_test
async def test_a_topic_in_every_version(version: int):
    handlers = await start_handlers()
    response = await create(handlers, version, topic("a", retention_ms="5000"), topic("a b"))
    created, failed = response.topics
    image = handlers.member.image.topics["a"]
    assert (created.name, created.error_code, created.error_message) == ("a", 0, None)
    assert len(image.partitions) == 2
    assert image.configs == {"retention.ms": "5000"}
    assert created.topic_id == (image.topic_id if version >= 7 else bytes(16))
    assert (failed.error_code, failed.error_message.split(":")[0]) == (17, "Topic name is invalid")
    assert (failed.num_partitions, failed.replication_factor, failed.configs) == (-1, -1, [])
    if version < 5:
        assert (created.num_partitions, created.replication_factor, created.configs) == (-1, -1, [])
        return
    assert (created.num_partitions, created.replication_factor) == (2, 1)
    configs = {config.name: config for config in created.configs}
    assert len(configs) >= 33
    assert (configs["retention.ms"].value, configs["retention.ms"].config_source) == ("5000", 1)
    assert (configs["segment.bytes"].value, configs["segment.bytes"].config_source) == ("1073741824", 5)
    assert not any(config.read_only or config.is_sensitive for config in created.configs)


@async_test
async def test_the_defaults_are_the_brokers():
    handlers = await start_handlers()
    (result,) = (await create(handlers, 7, topic("a", -1, -1))).topics
    assert (result.num_partitions, result.replication_factor) == (4, 1)


@async_test
async def test_validate_only_returns_everything_and_creates_nothing():
    handlers = await start_handlers()
    (result,) = (await create(handlers, 7, topic("a", 3), validate_only=True)).topics
    assert (result.error_code, result.num_partitions) == (0, 3)
    assert result.topic_id != bytes(16)
    assert handlers.member.image.topics == {}
    (result,) = (await create(handlers, 7, topic("a", 3, segment_bytes="x"), validate_only=True)).topics
    assert result.error_code == 40


@async_test
async def test_a_manual_assignment():
    handlers = await start_handlers()
    assigned = topic("a", -1, -1)
    assigned.assignments = [CreatableReplicaAssignment(partition_index=i, broker_ids=[1]) for i in (1, 0)]
    (result,) = (await create(handlers, 7, assigned)).topics
    assert (result.error_code, result.num_partitions, result.replication_factor) == (0, 2, 1)


@async_test
async def test_a_broker_that_is_not_the_controller_rejects_requests():
    handlers = await start_handlers()
    await handlers.member.leave()
    (result,) = (await create(handlers, 7, topic("a"))).topics
    assert result.error_code == 41
