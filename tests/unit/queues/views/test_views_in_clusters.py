"""Views and expiry in a cluster: the leader of the source moves, and consumers read from followers."""

import asyncio
from functools import partial

from kbroker.common import NO_LEADER
from kbroker.storage.log.log_reads import read_blocking
from protocol.errors import ErrorCode
from protocol.messages.k01_fetch import FetchResponse, PartitionData
from protocol.messages.k03_metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from protocol.messages.k19_create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from protocol.records.batch import build_batch
from tests.unit.support.client import Client, values_of
from tests.unit.support.simulated_cluster import SimulatedCluster
from tests.unit.support.simulated_hosts import simulated


async def create_view(s: SimulatedCluster, name: str, expression: str) -> None:
    configs = [
        CreatableTopicConfig(name="kbroker.view.of", value="t"),
        CreatableTopicConfig(name="kbroker.view.filter", value=expression),
    ]
    topic = CreatableTopic(name=name, num_partitions=-1, replication_factor=-1, configs=configs)
    request = CreateTopicsRequest(topics=[topic], timeout_ms=10_000)
    response = await s.client(
        s.controller, partial(Client.request, request=request, version=7, response_class=CreateTopicsResponse)
    )
    assert response.topics[0].error_code == 0, response
    for node_id in (1, 2, 3):
        topics = s.broker(node_id).services.metadata.topics
        await s.until(lambda topics=topics: name in topics, 10)


async def produce(s: SimulatedCluster, seen_by: int, value: bytes, tag: bytes, *headers: tuple[bytes, bytes]) -> None:
    """Produce to the leader as a client does, which asks again when the leader has changed."""
    while True:
        now_ms = s.broker(s.controller).environment.clock.now_ms()
        records = build_batch([(now_ms, None, value, ((b"TAGS", tag), *headers))])
        leader = s.registration(seen_by).leader
        response = await s.client(leader, partial(Client.produce, topic="t", records=records))
        if response.error_code not in (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_ENOUGH_REPLICAS):
            assert response.error_code == 0, response
            return
        await asyncio.sleep(0.1)


async def fetch(s: SimulatedCluster, node_id: int, topic: str, offset: int = 0, rack: str = "") -> PartitionData:
    """`rack`: of the consumer, which may then read from followers."""

    async def fetch_on(client: Client) -> FetchResponse:
        request = client.fetch_request({(topic, 0): offset})
        request.rack_id = rack
        return await client.request(request, 12, FetchResponse)

    response = await s.client(node_id, fetch_on)
    return response.responses[0].partitions[0]  # type: ignore[no-any-return]


async def leader_of(s: SimulatedCluster, seen_by: int, topic: str) -> tuple[int, list[int]]:
    request = MetadataRequest(topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False)
    response = await s.client(
        seen_by, partial(Client.request, request=request, version=12, response_class=MetadataResponse)
    )
    partition = response.topics[0].partitions[0]
    return partition.leader_id, sorted(partition.replica_nodes)


async def produce_three(s: SimulatedCluster) -> None:
    for number, tag in enumerate((b"paid", b"open", b"paid")):
        await produce(s, 1, b"%d" % number, tag)


@simulated(SimulatedCluster, range(2))
async def test_a_view_follows_the_leader_of_its_source(s: SimulatedCluster) -> None:
    await s.create([3, 1, 2], min_insync_replicas="2")
    await create_view(s, "v", "paid")
    await produce_three(s)
    assert await leader_of(s, 1, "v") == (3, [1, 2, 3])
    assert values_of(await fetch(s, 3, "v")) == [b"0", b"2"]
    # A follower serves consumers up to its high watermark.
    assert values_of(await fetch(s, 1, "v")) in ([], [b"0"], [b"0", b"2"])
    s.machines[3].power_off()
    await s.until(lambda: s.registration(1).leader not in (NO_LEADER, 3), 60)
    second = s.registration(1).leader
    await s.until(lambda: s.registration(second).leader == second, 60)
    assert (await leader_of(s, second, "v"))[0] == second
    await produce(s, second, b"3", b"open")
    await produce(s, second, b"4", b"paid")
    assert values_of(await fetch(s, second, "v")) == [b"0", b"2", b"4"]
    # The position of a consumer counts on the new leader.
    assert values_of(await fetch(s, second, "v", 3), 3) == [b"4"]


@simulated(SimulatedCluster, range(2))
async def test_a_view_moves_with_the_replicas_of_its_source(s: SimulatedCluster) -> None:
    await s.create([1, 2])
    await create_view(s, "v", "paid")
    await produce_three(s)
    assert await leader_of(s, 2, "v") == (1, [1, 2])
    await s.reassign([3, 2])
    await s.until(lambda: sorted(s.registration(3).replicas) == [2, 3], 60)
    await s.until(lambda: s.registration(3).leader == 3 and s.replica(3).is_leader, 60)
    assert await leader_of(s, 3, "v") == (3, [2, 3])
    assert values_of(await fetch(s, 3, "v")) == [b"0", b"2"]
    # Broker 1 has no replica any more: the consumer refreshes its metadata.
    await s.until(lambda: s.broker(1).services.replicas.get("t", 0) is None, 60)
    assert (await fetch(s, 1, "v")).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


@simulated(SimulatedCluster, range(2))
async def test_followers_serve_views_and_hide_expired_records(s: SimulatedCluster) -> None:
    """KIP-392: a consumer with client.rack may read from any replica."""
    await s.create([1, 2, 3], kbroker_ttl_enable="true")
    await create_view(s, "v", "paid")
    await produce(s, 1, b"kept", b"paid")
    await produce(s, 1, b"other", b"open")
    await produce(s, 1, b"expires", b"paid", (b"TTL_MS", b"5000"))
    await s.until(lambda: all(s.replica(node_id).state.high_watermark == 3 for node_id in (1, 2, 3)), 30)
    for node_id in (1, 2, 3):
        assert values_of(await fetch(s, node_id, "v", rack="a")) == [b"kept", b"expires"]
        assert values_of(await fetch(s, node_id, "t", rack="a")) == [b"kept", b"other", b"expires"]
    await asyncio.sleep(6)
    for node_id in (1, 2, 3):
        assert values_of(await fetch(s, node_id, "v", rack="a")) == [b"kept"]
        assert values_of(await fetch(s, node_id, "t", rack="a")) == [b"kept", b"other"]
        # The replicas have it.
        assert s.replica(node_id).log.log_end_offset == 3


@simulated(SimulatedCluster, range(2))
async def test_a_replica_that_joins_gets_expired_records_too(s: SimulatedCluster) -> None:
    await s.create([1], kbroker_ttl_ms="1000")
    await produce_three(s)
    await asyncio.sleep(5)
    assert values_of(await fetch(s, 1, "t")) == []
    await s.reassign([1, 2])
    await s.until(lambda: sorted(s.registration(1).isr) == [1, 2], 60)
    assert s.replica(2).log.log_end_offset == 3
    logs = [bytes(read_blocking(s.replica(node_id).log, 0, 1 << 20, 3)) for node_id in (1, 2)]
    assert logs[0] == logs[1]
