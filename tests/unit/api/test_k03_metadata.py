"""Metadata in all versions, as a single-node Apache Kafka 4.3.1 answers it."""

from typing import Any

import pytest

from kbroker.metadata.cluster_member import join_cluster
from kbroker.metadata.image import BrokerRegistration
from kbroker.metadata.topics.create_topics import NewTopic
from protocol.apis import APIS, ApiKey
from protocol.messages.k03_metadata import MetadataRequestTopic, MetadataResponseBroker
from tests.unit.support.handlers import Handlers, no_fault, run, start_handlers
from tests.unit.support.memory_disk import make_environment, settle

NOT_ASKED = -(2**31)
UNKNOWN_ID = b"\xff" * 16
ALL_VERSIONS = range(APIS[ApiKey.METADATA].min_version, APIS[ApiKey.METADATA].max_version + 1)


async def with_topics(*names: str, **configs: str) -> Handlers:
    handlers = await start_handlers(**configs)
    await handlers.member.controller.create_topics([NewTopic(name, 2) for name in names], False)
    return handlers


async def ask(handlers: Handlers, version: int, *names: str, **fields: Any) -> Any:
    topics = [MetadataRequestTopic(name=name) for name in names]
    return await handlers.request(ApiKey.METADATA, version, topics=topics, **fields)


def codes(answer: Any) -> list[tuple[str | None, int]]:
    return [(topic.name, topic.error_code) for topic in answer.topics]


@pytest.mark.parametrize("version", ALL_VERSIONS)
def test_a_topic_in_every_version(version: int):
    async def story():
        handlers = await with_topics("t1")
        asked = {"include_topic_authorized_operations": True} if version >= 8 else {}
        if 8 <= version <= 10:
            asked["include_cluster_authorized_operations"] = True
        answer = await ask(handlers, version, "t1", **asked)
        assert answer.throttle_time_ms == 0
        assert answer.brokers == [MetadataResponseBroker(node_id=1, host="127.0.0.1", port=9092, rack=None)]
        assert answer.cluster_id == (handlers.member.image.cluster_id if version >= 2 else None)
        assert answer.controller_id == (1 if version >= 1 else -1)
        assert answer.cluster_authorized_operations == (8096 if 8 <= version <= 10 else NOT_ASKED)
        (topic,) = answer.topics
        assert topic.error_code == 0
        assert topic.topic_id == (handlers.member.image.topics["t1"].topic_id if version >= 10 else bytes(16))
        assert topic.topic_authorized_operations == (3576 if version >= 8 else NOT_ASKED)
        assert not topic.is_internal
        for index, partition in enumerate(topic.partitions):
            assert (partition.error_code, partition.partition_index, partition.leader_id) == (0, index, 1)
            assert partition.leader_epoch == (0 if version >= 7 else -1)
            assert (partition.replica_nodes, partition.isr_nodes, partition.offline_replicas) == ([1], [1], [])

    run(story)


def test_what_stands_for_all_topics():
    async def story():
        handlers = await with_topics("a", "b")
        assert codes(await handlers.request(ApiKey.METADATA, 0, topics=[])) == [("a", 0), ("b", 0)]
        for version in ALL_VERSIONS[1:]:
            assert codes(await handlers.request(ApiKey.METADATA, version, topics=[])) == []
            assert codes(await handlers.request(ApiKey.METADATA, version, topics=None)) == [("a", 0), ("b", 0)]

    run(story)


@pytest.mark.parametrize("version", [10, 11])
def test_ids_and_null_names_are_refused_before_version_12(version: int):
    async def story():
        handlers = await with_topics("t1")
        topic_id = handlers.member.image.topics["t1"].topic_id
        for asked in (
            MetadataRequestTopic(name="t1", topic_id=topic_id),
            MetadataRequestTopic(name=None, topic_id=topic_id),
            MetadataRequestTopic(name=None),
        ):
            answer = await handlers.request(ApiKey.METADATA, version, topics=[asked])
            assert codes(answer) == [(asked.name or "", 42)]
            assert answer.topics[0].topic_id == asked.topic_id

    run(story)


@pytest.mark.parametrize("version", [12, 13])
def test_topics_by_id(version: int):
    async def story():
        handlers = await with_topics("t1", "t2")
        by_id = MetadataRequestTopic(name=None, topic_id=handlers.member.image.topics["t1"].topic_id)
        answer = await handlers.request(ApiKey.METADATA, version, topics=[by_id, MetadataRequestTopic(name="t2")])
        assert codes(answer) == [("t1", 0)]
        unknown = MetadataRequestTopic(name="t1", topic_id=UNKNOWN_ID)
        answer = await handlers.request(ApiKey.METADATA, version, topics=[unknown])
        assert codes(answer) == [(None, 100)]
        assert answer.topics[0].topic_id == UNKNOWN_ID
        neither = await handlers.request(ApiKey.METADATA, version, topics=[MetadataRequestTopic(name=None)])
        assert codes(neither) == [("", 42)]

    run(story)


def test_names_that_are_absent():
    async def story():
        handlers = await with_topics("t1")
        names = ("nope", "a b", "", "__consumer_offsets", "t1", "t1")
        answer = await ask(handlers, 12, *names, allow_auto_topic_creation=False)
        assert codes(answer) == [("nope", 3), ("a b", 17), ("", 17), ("__consumer_offsets", 3), ("t1", 0)]
        assert [topic.is_internal for topic in answer.topics] == [False, False, False, True, False]
        assert set(handlers.member.image.topics) == {"t1"}

    run(story)


@pytest.mark.parametrize("version", [0, 3, 4, 12])
def test_an_absent_topic_is_created_and_answered(version: int):
    async def story():
        handlers = await start_handlers()
        answer = await ask(handlers, version, "new", "a b")
        assert codes(answer) == [("new", 0), ("a b", 17)]
        assert len(answer.topics[0].partitions) == 4
        internal = await ask(handlers, version, "__consumer_offsets")
        assert internal.topics[0].is_internal == (version > 0)
        assert len(internal.topics[0].partitions) == 50
        assert handlers.member.image.topics["__consumer_offsets"].configs["cleanup.policy"] == "compact"

    run(story)


def test_the_broker_may_forbid_creation():
    async def story():
        handlers = await start_handlers(auto_create_topics_enable="false")
        assert codes(await ask(handlers, 12, "new")) == [("new", 3)]
        assert handlers.member.image.topics == {}

    run(story)


def test_a_name_that_collides_stays_unknown():
    async def story():
        handlers = await with_topics("x.y")
        assert codes(await ask(handlers, 12, "x_y")) == [("x_y", 3)]

    run(story)


def test_replicas_that_are_away():
    async def story():
        handlers = await start_handlers()
        environment = make_environment(seed=2)
        other = await join_cluster(
            environment,
            handlers.store.session(),
            BrokerRegistration(2, "h", 1, "r2"),
            lambda: handlers.services.config,
            no_fault,
        )
        await settle()
        assert (await ask(handlers, 12)).brokers[1].rack == "r2"
        spec = NewTopic("t", assignments=[(0, [1, 2]), (1, [2, 1])])
        await handlers.member.controller.create_topics([spec], False)
        await other.leave()
        await settle()
        first, second = (await ask(handlers, 12, "t")).topics[0].partitions
        assert (first.error_code, first.leader_id, first.offline_replicas) == (0, 1, [2])
        assert (second.error_code, second.leader_id, second.offline_replicas) == (5, -1, [2])
        assert second.replica_nodes == [2, 1]
        first, second = (await ask(handlers, 0, "t")).topics[0].partitions
        assert (first.error_code, first.replica_nodes, first.isr_nodes) == (9, [1], [1])
        assert (second.error_code, second.leader_id, second.replica_nodes) == (5, -1, [1])

    run(story)
