"""CreateTopics in all versions. What is refused, and why, is in tests/unit/metadata/topics/test_create_topics.py."""

from typing import Any

import pytest

from protocol.apis import ApiKey
from protocol.messages.k19_create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
)
from tests.unit.support.handlers import Handlers, run, start_handlers


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
def test_a_topic_in_every_version(version: int):
    async def story():
        handlers = await start_handlers()
        answer = await create(handlers, version, topic("a", retention_ms="5000"), topic("a b"))
        good, bad = answer.topics
        image = handlers.member.image.topics["a"]
        assert (good.name, good.error_code, good.error_message) == ("a", 0, None)
        assert len(image.partitions) == 2
        assert image.configs == {"retention.ms": "5000"}
        assert good.topic_id == (image.topic_id if version >= 7 else bytes(16))
        assert (bad.error_code, bad.error_message.split(":")[0]) == (17, "Topic name is invalid")
        assert (bad.num_partitions, bad.replication_factor, bad.configs) == (-1, -1, [])
        if version < 5:
            assert (good.num_partitions, good.replication_factor, good.configs) == (-1, -1, [])
            return
        assert (good.num_partitions, good.replication_factor) == (2, 1)
        told = {config.name: config for config in good.configs}
        assert len(told) >= 33
        assert (told["retention.ms"].value, told["retention.ms"].config_source) == ("5000", 1)
        assert (told["segment.bytes"].value, told["segment.bytes"].config_source) == ("1073741824", 5)
        assert not any(config.read_only or config.is_sensitive for config in good.configs)

    run(story)


def test_defaults_are_the_brokers():
    async def story():
        handlers = await start_handlers()
        (answer,) = (await create(handlers, 7, topic("a", -1, -1))).topics
        assert (answer.num_partitions, answer.replication_factor) == (4, 1)

    run(story)


def test_validation_tells_everything_and_makes_nothing():
    async def story():
        handlers = await start_handlers()
        (answer,) = (await create(handlers, 7, topic("a", 3), validate_only=True)).topics
        assert (answer.error_code, answer.num_partitions) == (0, 3)
        assert answer.topic_id != bytes(16)
        assert handlers.member.image.topics == {}
        (refused,) = (await create(handlers, 7, topic("a", 3, segment_bytes="x"), validate_only=True)).topics
        assert refused.error_code == 40

    run(story)


def test_a_manual_assignment():
    async def story():
        handlers = await start_handlers()
        spec = topic("a", -1, -1)
        spec.assignments = [CreatableReplicaAssignment(partition_index=i, broker_ids=[1]) for i in (1, 0)]
        (answer,) = (await create(handlers, 7, spec)).topics
        assert (answer.error_code, answer.num_partitions, answer.replication_factor) == (0, 2, 1)

    run(story)


def test_another_broker_is_the_controller():
    async def story():
        handlers = await start_handlers()
        await handlers.member.leave()
        (answer,) = (await create(handlers, 7, topic("a"))).topics
        assert answer.error_code == 41

    run(story)
