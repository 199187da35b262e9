"""A cached response is always equal to the handler's, after any change of metadata or configs."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from kbroker.metadata.image import BrokerEndpoint, BrokerRegistration, MetadataDelta, PartitionRegistration, TopicImage
from kbroker.server import response_cache
from kbroker.server.response_cache import ENTRY_OVERHEAD, MAX_BYTES, MAX_RESPONSE_BYTES, ResponseCache
from protocol.apis import ApiKey
from protocol.errors import ErrorCode
from protocol.messages import message_classes
from protocol.messages.k03_metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from protocol.messages.k10_find_coordinator import FindCoordinatorRequest
from protocol.messages.k20_delete_topics import DeleteTopicsRequest, DeleteTopicsResponse, DeleteTopicState
from protocol.messages.k32_describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from protocol.messages.k37_create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
)
from protocol.messages.k44_incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from protocol.schema.message import Message
from tests.unit.support.client import Client
from tests.unit.support.handlers import respond
from tests.unit.support.simulated_broker import Machine, broker_test

TOPIC, BROKER, BROKER_LOGGER = 2, 4, 8


def metadata(*names: str, **flags: bool) -> MetadataRequest:
    return MetadataRequest(topics=[MetadataRequestTopic(name=name) for name in names], **flags)


def configs(kind: int, name: str, **flags: bool) -> DescribeConfigsRequest:
    return DescribeConfigsRequest(resources=[DescribeConfigsResource(resource_type=kind, resource_name=name)], **flags)


# Requests whose responses differ, each with its version.
REQUESTS: list[tuple[Message, int]] = [
    (FindCoordinatorRequest(key="g"), 2),
    (FindCoordinatorRequest(coordinator_keys=["g", "h"]), 4),
    (FindCoordinatorRequest(coordinator_keys=["g", "h"]), 6),
    (MetadataRequest(topics=None), 1),
    (MetadataRequest(topics=None), 12),
    (metadata("t"), 4),
    (metadata("t"), 9),
    (metadata("t"), 12),
    (metadata("t", allow_auto_topic_creation=False), 9),
    (metadata("t", include_topic_authorized_operations=True), 9),
    (metadata("t", include_cluster_authorized_operations=True), 9),
    (metadata("u"), 9),
    (metadata("t", "u"), 9),
    (configs(TOPIC, "t"), 2),
    (configs(TOPIC, "t", include_synonyms=True), 2),
    (configs(TOPIC, "t", include_synonyms=True), 4),
    (configs(TOPIC, "t", include_documentation=True), 4),
    (configs(TOPIC, "u"), 4),
    (configs(BROKER, "1"), 4),
    (configs(BROKER, ""), 4),
]


def cache_of(m: Machine) -> ResponseCache:
    return m.broker._server.context.cached_responses


async def check(m: Machine, client: Client) -> None:
    """Send each request three times, so that the last response at least is cached if it may be."""
    for request, version in REQUESTS:
        key = type(request).__options__["key"]
        response_class = message_classes(key)[1]
        expected = await respond(m.broker.services, request, version)
        for _ in range(3):
            assert await client.request(request, version, response_class) == expected, (request, version)


async def alter(client: Client, kind: int, name: str, key: str, value: str) -> None:
    change = AlterableConfig(name=key, config_operation=0, value=value)
    resource = AlterConfigsResource(resource_type=kind, resource_name=name, configs=[change])
    request = IncrementalAlterConfigsRequest(resources=[resource])
    response = await client.request(request, 1, IncrementalAlterConfigsResponse)
    assert response.responses[0].error_code == 0


async def prepared(m: Machine) -> Client:
    client = await m.client()
    await client.create_topic("t", 2)
    await client.create_topic("u", 1)
    await client.request(FindCoordinatorRequest(key="g"), 2, message_classes(ApiKey.FIND_COORDINATOR)[1])
    await check(m, client)
    assert len(cache_of(m)) == len(REQUESTS)
    return client


@broker_test(auto_create_topics_enable=False)
async def test_topics_that_are_created_and_deleted(m: Machine) -> None:
    client = await prepared(m)
    deleted = DeleteTopicsRequest(topics=[DeleteTopicState(name="u")], timeout_ms=1000)
    assert (await client.request(deleted, 6, DeleteTopicsResponse)).responses[0].error_code == 0
    await check(m, client)
    response = await client.request(metadata("u"), 9, MetadataResponse)
    assert response.topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    await client.create_topic("u", 3)
    response = await client.request(metadata("u"), 9, MetadataResponse)
    assert len(response.topics[0].partitions) == 3
    await check(m, client)


@broker_test
async def test_partitions_that_are_added(m: Machine) -> None:
    client = await prepared(m)
    request = CreatePartitionsRequest(
        topics=[CreatePartitionsTopic(name="t", count=5, assignments=None)], timeout_ms=1000
    )
    assert (await client.request(request, 3, CreatePartitionsResponse)).results[0].error_code == 0
    assert len((await client.request(metadata("t"), 9, MetadataResponse)).topics[0].partitions) == 5
    await check(m, client)


@broker_test
@pytest.mark.parametrize(
    ("kind", "name", "key"),
    [(TOPIC, "t", "retention.ms"), (BROKER, "", "log.retention.ms"), (BROKER, "1", "log.retention.ms")],
)
async def test_configs_that_are_altered(m: Machine, kind: int, name: str, key: str) -> None:
    client = await prepared(m)
    for value in ("1234567", "7654321"):
        await alter(client, kind, name, key, value)
        response = await client.request(configs(kind, name), 4, DescribeConfigsResponse)
        assert value in {config.value for config in response.results[0].configs}
        await check(m, client)


@broker_test
async def test_every_change_of_the_image(m: Machine) -> None:
    """Changes that one broker does not make: leader epochs, in-sync replicas, other brokers, another listener."""
    client = await prepared(m)
    image = m.broker.services.metadata
    topic, this = image.topics["t"], image.brokers[1]
    group_topic = image.topics["__consumer_offsets"]

    def with_partition(old: TopicImage, **changes: Any) -> MetadataDelta:
        fields = {"leader": 1, "leader_epoch": 0, "replicas": [1, 2], "isr": [1]}
        partition = PartitionRegistration(**{**fields, **changes})
        new = TopicImage(old.name, old.topic_id, old.internal, old.configs, [partition, *old.partitions[1:]])
        return MetadataDelta(updated=[new])

    deltas = [
        MetadataDelta(brokers={2: BrokerRegistration(2, "other", 9094, "rack")}),
        with_partition(topic, leader_epoch=7),
        with_partition(topic, isr=[1, 2]),
        with_partition(topic, leader=2, leader_epoch=8),
        MetadataDelta(controller_id=2),
        with_partition(group_topic, leader=2),
        MetadataDelta(brokers={1: this._replace(endpoints=(BrokerEndpoint("PLAINTEXT", "elsewhere", 9999),))}),
        MetadataDelta(brokers={2: None}),
        with_partition(group_topic, leader=1),
        with_partition(topic, leader=1, leader_epoch=9),
    ]
    seen = set()
    for delta in deltas:
        image.apply(delta)
        await check(m, client)
        seen.add(str(await client.request(MetadataRequest(topics=None), 12, MetadataResponse)))
    assert len(seen) == len(deltas)


@broker_test
async def test_a_response_with_an_error_is_made_and_counted_each_time(m: Machine) -> None:
    client = await m.client()
    request = metadata("a/b")
    for _ in range(3):
        response = await client.request(request, 9, MetadataResponse)
        assert response.topics[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert m.broker._server.context.errors.errors[ApiKey.METADATA, ErrorCode.INVALID_TOPIC_EXCEPTION] == 3
    assert not len(cache_of(m))


@broker_test
async def test_levels_of_loggers_are_not_cached(m: Machine) -> None:
    client = await m.client()
    await client.request(configs(BROKER_LOGGER, "1"), 4, DescribeConfigsResponse)
    assert not len(cache_of(m))


@broker_test
async def test_a_missing_topic_is_created_only_if_the_request_allows_it(m: Machine) -> None:
    client = await m.client()
    for _ in range(2):
        response = await client.request(metadata("new", allow_auto_topic_creation=False), 9, MetadataResponse)
        assert response.topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    response = await client.request(metadata("new", allow_auto_topic_creation=True), 9, MetadataResponse)
    assert response.topics[0].error_code == 0
    response = await client.request(metadata("new", allow_auto_topic_creation=False), 9, MetadataResponse)
    assert response.topics[0].error_code == 0


@broker_test
async def test_a_cached_response_counts_as_a_request_and_has_its_place(m: Machine) -> None:
    client = await m.client()
    await client.create_topic("t", 2)
    version = 9
    await client.request(metadata("t"), version, MetadataResponse)
    stats = m.broker._server.context.dispatch[ApiKey.METADATA, version].stats
    before = stats.requests, stats.bytes_in, stats.bytes_out, sum(stats.buckets)
    # The first waits for the creation of a topic. The second, whose response is cached, is sent after it.
    waiting = client.send(metadata("new"), version, MetadataResponse)
    cached = client.send(metadata("t"), version, MetadataResponse)
    done = []
    waiting.add_done_callback(lambda _: done.append("waiting"))
    cached.add_done_callback(lambda _: done.append("cached"))
    await asyncio.gather(waiting, cached)
    assert done == ["waiting", "cached"]
    after = stats.requests, stats.bytes_in, stats.bytes_out, sum(stats.buckets)
    assert [new - old for old, new in zip(before, after, strict=True)][0::3] == [2, 2]
    assert after[1] > before[1]
    assert after[2] > before[2]


# The bound.


def services(version: int = 0, config: object = None) -> Any:
    return SimpleNamespace(metadata=SimpleNamespace(version=version), config=config)


def test_the_oldest_responses_make_room_for_new_ones() -> None:
    cache = ResponseCache()
    response = bytes(MAX_BYTES // 10)
    for number in range(100):
        assert cache.get(services(), b"%03d" % number) is None
        cache.put(b"%03d" % number, response)
        assert cache.size <= MAX_BYTES
    assert len(cache) == 9
    assert cache.get(services(), b"090") is None
    assert cache.get(services(), b"091") == response
    assert cache.size == 9 * (3 + len(response) + ENTRY_OVERHEAD)


def test_a_large_response_is_not_cached() -> None:
    cache = ResponseCache()
    cache.get(services(), b"")
    cache.put(b"", bytes(MAX_RESPONSE_BYTES + 1))
    assert (len(cache), cache.size) == (0, 0)
    cache.put(b"", bytes(MAX_RESPONSE_BYTES))
    assert len(cache) == 1


@pytest.mark.parametrize("other", [services(version=1), services(config=object())])
def test_all_responses_are_dropped_when_the_image_or_the_config_changes(other: Any) -> None:
    cache = ResponseCache()
    first = services()
    cache.get(first, b"a")
    cache.put(b"a", b"A")
    assert cache.get(first, b"a") == b"A"
    assert cache.get(other, b"a") is None
    assert (len(cache), cache.size) == (0, 0)
    assert cache.get(first, b"a") is None


@broker_test
async def test_a_long_request_is_not_cached(m: Machine) -> None:
    client = await m.client()
    await client.create_topic("t", 1)
    before = len(cache_of(m))
    request = metadata(*["t"] * (response_cache.MAX_REQUEST_BYTES // 3))
    assert await client.request(request, 4, MetadataResponse) == await respond(m.broker.services, request, 4)
    assert len(cache_of(m)) == before
