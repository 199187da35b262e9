"""Metadata in all versions, against the responses of a single-node Apache Kafka 4.3.1."""

from typing import Any

import pytest

from kbroker.interbroker.auto_topic_creation_manager import DELETED_LATELY_MS
from kbroker.metadata.image import BrokerRegistration, MetadataDelta
from kbroker.metadata.topics.topic_requests import NewTopic
from protocol.apis import APIS, ApiKey
from protocol.messages.k03_metadata import MetadataRequestTopic, MetadataResponseBroker
from tests.unit.support.async_test import async_test
from tests.unit.support.handlers import Handlers, raise_failure, start_handlers
from tests.unit.support.memory_disk import make_environment, settle
from tests.unit.support.metadata_cluster import join_cluster

NOT_REQUESTED = -(2**31)
UNKNOWN_ID = b"\xff" * 16
ALL_VERSIONS = range(APIS[ApiKey.METADATA].min_version, APIS[ApiKey.METADATA].max_version + 1)


async def with_topics(*names: str, **configs: str) -> Handlers:
    handlers = await start_handlers(**configs)
    await handlers.member.controller.topics.create_topics([NewTopic(name, 2) for name in names], False)
    return handlers


async def metadata(handlers: Handlers, version: int, *names: str, **fields: Any) -> Any:
    topics = [MetadataRequestTopic(name=name) for name in names]
    return await handlers.request(ApiKey.METADATA, version, topics=topics, **fields)


def codes(response: Any) -> list[tuple[str | None, int]]:
    return [(topic.name, topic.error_code) for topic in response.topics]


@pytest.mark.parametrize("version", ALL_VERSIONS)
@async_test
async def test_a_topic_in_every_version(version: int):
    handlers = await with_topics("t1")
    options = {"include_topic_authorized_operations": True} if version >= 8 else {}
    if 8 <= version <= 10:
        options["include_cluster_authorized_operations"] = True
    response = await metadata(handlers, version, "t1", **options)
    assert response.throttle_time_ms == 0
    assert response.brokers == [MetadataResponseBroker(node_id=1, host="127.0.0.1", port=9092, rack=None)]
    assert response.cluster_id == (handlers.member.image.cluster_id if version >= 2 else None)
    assert response.controller_id == (1 if version >= 1 else -1)
    assert response.cluster_authorized_operations == (8096 if 8 <= version <= 10 else NOT_REQUESTED)
    (topic,) = response.topics
    assert topic.error_code == 0
    assert topic.topic_id == (handlers.member.image.topics["t1"].topic_id if version >= 10 else bytes(16))
    assert topic.topic_authorized_operations == (3576 if version >= 8 else NOT_REQUESTED)
    assert not topic.is_internal
    for index, partition in enumerate(topic.partitions):
        assert (partition.error_code, partition.partition_index, partition.leader_id) == (0, index, 1)
        assert partition.leader_epoch == (0 if version >= 7 else -1)
        assert (partition.replica_nodes, partition.isr_nodes, partition.offline_replicas) == ([1], [1], [])


@async_test
async def test_a_broker_is_named_while_no_controller_is_known():
    handlers = await with_topics()
    image = handlers.member.image
    for controller_id in (-1, 7):
        image.controller_id = controller_id
        assert (await metadata(handlers, 9)).controller_id == 1
    image.apply(MetadataDelta(brokers={1: None}))
    assert (await metadata(handlers, 12)).controller_id == -1


@async_test
async def test_requests_for_all_topics():
    handlers = await with_topics("a", "b")
    assert codes(await handlers.request(ApiKey.METADATA, 0, topics=[])) == [("a", 0), ("b", 0)]
    for version in ALL_VERSIONS[1:]:
        assert codes(await handlers.request(ApiKey.METADATA, version, topics=[])) == []
        assert codes(await handlers.request(ApiKey.METADATA, version, topics=None)) == [("a", 0), ("b", 0)]


@pytest.mark.parametrize("version", [10, 11])
@async_test
async def test_ids_and_null_names_are_rejected_before_version_12(version: int):
    handlers = await with_topics("t1")
    topic_id = handlers.member.image.topics["t1"].topic_id
    for topic in (
        MetadataRequestTopic(name="t1", topic_id=topic_id),
        MetadataRequestTopic(name=None, topic_id=topic_id),
        MetadataRequestTopic(name=None),
    ):
        response = await handlers.request(ApiKey.METADATA, version, topics=[topic])
        assert codes(response) == [(topic.name or "", 42)]
        assert response.topics[0].topic_id == topic.topic_id


@pytest.mark.parametrize("version", [12, 13])
@async_test
async def test_topics_by_id(version: int):
    handlers = await with_topics("t1", "t2")
    by_id = MetadataRequestTopic(name=None, topic_id=handlers.member.image.topics["t1"].topic_id)
    response = await handlers.request(ApiKey.METADATA, version, topics=[by_id, MetadataRequestTopic(name="t2")])
    assert codes(response) == [("t1", 0)]
    unknown = MetadataRequestTopic(name="t1", topic_id=UNKNOWN_ID)
    response = await handlers.request(ApiKey.METADATA, version, topics=[unknown])
    assert codes(response) == [(None, 100)]
    assert response.topics[0].topic_id == UNKNOWN_ID
    without_both = await handlers.request(ApiKey.METADATA, version, topics=[MetadataRequestTopic(name=None)])
    assert codes(without_both) == [("", 42)]


@async_test
async def test_missing_topics():
    handlers = await with_topics("t1")
    names = ("nope", "a b", "", "__consumer_offsets", "t1", "t1")
    response = await metadata(handlers, 12, *names, allow_auto_topic_creation=False)
    assert codes(response) == [("nope", 3), ("a b", 17), ("", 17), ("__consumer_offsets", 3), ("t1", 0)]
    assert [topic.is_internal for topic in response.topics] == [False, False, False, True, False]
    assert set(handlers.member.image.topics) == {"t1"}


@pytest.mark.parametrize("version", [0, 3, 4, 12])
@async_test
async def test_a_missing_topic_is_created_and_returned(version: int):
    handlers = await start_handlers()
    response = await metadata(handlers, version, "new", "a b")
    assert codes(response) == [("new", 0), ("a b", 17)]
    assert len(response.topics[0].partitions) == 4
    internal = await metadata(handlers, version, "__consumer_offsets")
    assert internal.topics[0].is_internal == (version > 0)
    assert len(internal.topics[0].partitions) == 50
    assert handlers.member.image.topics["__consumer_offsets"].configs["cleanup.policy"] == "compact"


@async_test
async def test_auto_creation_can_be_disabled():
    handlers = await start_handlers(auto_create_topics_enable="false")
    assert codes(await metadata(handlers, 12, "new")) == [("new", 3)]
    assert handlers.member.image.topics == {}


@async_test
async def test_a_colliding_name_is_not_created():
    handlers = await with_topics("x.y")
    assert codes(await metadata(handlers, 12, "x_y")) == [("x_y", 3)]


@async_test
async def test_a_topic_that_was_just_deleted_is_unknown_once():
    """kafka-go's tests look whether it is gone with a request that creates it."""
    handlers = await with_topics("t1", "t2")
    await handlers.request(ApiKey.DELETE_TOPICS, 3, topic_names=["t1", "t2", "nope"])
    assert codes(await metadata(handlers, 4, "t1", "new", "nope")) == [("t1", 3), ("new", 0), ("nope", 0)]
    assert codes(await metadata(handlers, 4, "t1")) == [("t1", 0)]
    clock: Any = handlers.services.environment.clock
    later_ms = clock.mono_ms() + DELETED_LATELY_MS
    clock.mono_ms = lambda: later_ms
    assert codes(await metadata(handlers, 4, "t2")) == [("t2", 0)]


async def join_second_broker(handlers):
    other = await join_cluster(
        make_environment(seed=2),
        handlers.store.session(),
        BrokerRegistration(2, "h", 1, "r2"),
        lambda: handlers.services.config,
        raise_failure,
    )
    await settle()
    return other


@async_test
async def test_a_topic_that_a_cluster_creates_is_unknown_once():
    """Its brokers may not serve it yet: aiokafka's tests fetch from them at once."""
    handlers = await start_handlers()
    await join_second_broker(handlers)
    assert codes(await metadata(handlers, 12, "new")) == [("new", 3)]
    assert codes(await metadata(handlers, 12, "new")) == [("new", 0)]


@async_test
async def test_offline_replicas():
    handlers = await start_handlers()
    other = await join_second_broker(handlers)
    assert (await metadata(handlers, 12)).brokers[1].rack == "r2"
    await handlers.member.controller.topics.create_topics([NewTopic("alone", assignments=[(0, [2])])], False)
    topic = NewTopic("t", assignments=[(0, [1, 2]), (1, [2, 1])])
    await handlers.member.controller.topics.create_topics([topic], False)
    await other.leave()
    await settle()
    first, second = (await metadata(handlers, 12, "t")).topics[0].partitions
    assert (first.error_code, first.leader_id, first.offline_replicas) == (0, 1, [2])
    assert (second.error_code, second.leader_id, second.offline_replicas) == (0, 1, [2])
    assert (second.replica_nodes, second.isr_nodes) == ([2, 1], [1])
    (alone,) = (await metadata(handlers, 12, "alone")).topics[0].partitions
    assert (alone.error_code, alone.leader_id, alone.offline_replicas) == (5, -1, [2])
    first, second = (await metadata(handlers, 0, "t")).topics[0].partitions
    assert (first.error_code, first.replica_nodes, first.isr_nodes) == (9, [1], [1])
    (alone,) = (await metadata(handlers, 0, "alone")).topics[0].partitions
    assert (alone.error_code, alone.leader_id, alone.replica_nodes) == (5, -1, [])
