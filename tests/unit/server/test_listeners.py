"""A cluster with two listeners, as for a host and for its containers: each client gets the addresses of its own."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from kbroker.metadata.image import BrokerRegistration
from kbroker.metadata.store import znodes
from protocol.errors import ErrorCode
from protocol.messages.k00_produce import ProduceResponse
from protocol.messages.k01_fetch import FetchResponse
from protocol.messages.k03_metadata import MetadataRequest, MetadataResponse
from protocol.messages.k10_find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from protocol.messages.k55_describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    PartitionRequest,
    TopicRequest,
)
from protocol.messages.k60_describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from protocol.messages.k75_describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
)
from protocol.messages.k75_describe_topic_partitions import (
    TopicRequest as DescribedTopic,
)
from tests.unit.support.client import Client, batch
from tests.unit.support.simulated_broker import Machine, broker_test
from tests.unit.support.simulated_cluster import SimulatedCluster
from tests.unit.support.simulated_hosts import simulated

SEEDS = [0, 1]
INSIDE, HOST = 9092, 19092
PROTOCOLS = "PLAINTEXT:PLAINTEXT,HOST:PLAINTEXT"


def two_listeners(node_id: int) -> dict[str, str]:
    """Return the configs of a broker that clients on the host reach as hostN:19092."""
    return {
        "listeners": f"PLAINTEXT://b{node_id}:{INSIDE},HOST://b{node_id}:{HOST}",
        "advertised.listeners": f"PLAINTEXT://b{node_id}:{INSIDE},HOST://host{node_id}:{HOST}",
        "listener.security.protocol.map": PROTOCOLS,
    }


class TwoNetworks(SimulatedCluster):
    """Broker 3 has the listener PLAINTEXT only."""

    def configs(self, node_id: int) -> dict[str, str]:
        return super().configs(node_id) | (two_listeners(node_id) if node_id < 3 else {})

    async def start(self) -> None:
        await super().start()
        await self.until(lambda: all(len(self.broker(id).services.metadata.brokers) == 3 for id in (1, 2, 3)))

    async def ask(self, port: int, requests: Callable[[Client], Awaitable[Any]], node_id: int = 1) -> Any:
        """Send requests to a listener of a broker."""
        host = self.host("client")

        async def run() -> Any:
            _, client = await host.create_connection(lambda: Client(host), f"b{node_id}", port)
            try:
                return await requests(client)
            finally:
                client.close()

        return await host.run(run())

    async def metadata(self, port: int, version: int = 12, node_id: int = 1) -> MetadataResponse:
        """Send the same request three times: the last responses are cached ones, if they may be."""

        async def requests(client: Client) -> MetadataResponse:
            responses = [
                await client.request(MetadataRequest(topics=None if version else []), version, MetadataResponse)
                for _ in range(3)
            ]
            assert responses[0] == responses[1] == responses[2]
            return responses[0]

        response: MetadataResponse = await self.ask(port, requests, node_id)
        return response

    async def addresses(self, port: int, node_id: int = 1) -> dict[int, str]:
        brokers = (await self.metadata(port, node_id=node_id)).brokers
        return {broker.node_id: f"{broker.host}:{broker.port}" for broker in brokers}


@simulated(TwoNetworks, SEEDS)
async def test_responses_name_the_brokers_of_the_listener(s: TwoNetworks) -> None:
    inside, host = {id: f"b{id}:9092" for id in (1, 2, 3)}, {1: "host1:19092", 2: "host2:19092"}
    for _ in range(2):
        assert await s.addresses(INSIDE) == inside
        assert await s.addresses(HOST) == host
    for port, expected in ((INSIDE, inside), (HOST, host)):
        cluster = await s.ask(port, lambda client: client.request(DescribeClusterRequest(), 1, DescribeClusterResponse))
        assert {row.broker_id: f"{row.host}:{row.port}" for row in cluster.brokers} == expected
        assert cluster.controller_id in expected
        assert (await s.metadata(port)).controller_id in expected


@simulated(TwoNetworks, SEEDS)
async def test_a_leader_without_the_listener(s: TwoNetworks) -> None:
    await s.create([3, 1, 2], [1, 2, 3], name="t")
    for version, error in ((12, ErrorCode.LISTENER_NOT_FOUND), (6, ErrorCode.LISTENER_NOT_FOUND), (5, 5), (0, 5)):
        (topic,) = (await s.metadata(HOST, version)).topics
        first, second = sorted(topic.partitions, key=lambda partition: partition.partition_index)
        assert (first.error_code, first.leader_id) == (error, -1)
        # Version 0 omits such replicas, with an error.
        assert (second.error_code, second.leader_id) == (0 if version else ErrorCode.REPLICA_NOT_AVAILABLE, 1)
        assert second.replica_nodes == ([1, 2, 3] if version else [1, 2])
        if version >= 5:
            assert first.offline_replicas == second.offline_replicas == [3]
    (topic,) = (await s.metadata(INSIDE)).topics
    assert [partition.error_code for partition in topic.partitions] == [0, 0]
    request = DescribeTopicPartitionsRequest(topics=[DescribedTopic(name="t")])
    described = await s.ask(HOST, lambda client: client.request(request, 0, DescribeTopicPartitionsResponse))
    first, second = described.topics[0].partitions
    assert (first.error_code, first.leader_id, first.offline_replicas, second.leader_id) == (0, -1, [3], 1)


@simulated(TwoNetworks, SEEDS)
async def test_hints_and_coordinators_are_at_the_listener(s: TwoNetworks) -> None:
    await s.create([1, 3], [3, 1], name="t")
    await s.until(lambda: "t" in s.broker(2).services.metadata.topics)
    for port, address in ((INSIDE, ("b1", INSIDE)), (HOST, ("host1", HOST))):

        async def produce_and_fetch(client: Client) -> tuple[Any, Any, Any]:
            client.ids["t"] = s.broker(2).services.metadata.topics["t"].topic_id
            produced = await client.request(
                client.produce_request("t", {0: batch(b"a"), 1: batch(b"b")}), 12, ProduceResponse
            )
            fetched = await client.request(
                client.fetch_request({("t", 0): 0, ("t", 1): 0}, leader_epoch=0), 17, FetchResponse
            )
            found = await client.request(
                FindCoordinatorRequest(key_type=0, coordinator_keys=["g"]), 4, FindCoordinatorResponse
            )
            return produced, fetched, found

        produced, fetched, found = await s.ask(port, produce_and_fetch, node_id=2)
        expected = {1: address} | ({3: ("b3", INSIDE)} if port == INSIDE else {})
        for response in (produced, fetched):
            assert {node.node_id: (node.host, node.port) for node in response.node_endpoints} == expected
        leader = s.registration(1, "__consumer_offsets").leader
        (coordinator,) = found.coordinators
        if port == HOST and leader == 3:
            assert coordinator.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        else:
            name = "host" if port == HOST else "b"
            assert (coordinator.host, coordinator.port) == (f"{name}{leader}", port)


@simulated(TwoNetworks, SEEDS)
async def test_the_quorum_has_all_listeners(s: TwoNetworks) -> None:
    request = DescribeQuorumRequest(
        topics=[TopicRequest(topic_name="__cluster_metadata", partitions=[PartitionRequest(partition_index=0)])]
    )
    quorum = await s.ask(HOST, lambda client: client.request(request, 2, DescribeQuorumResponse))
    listeners = {node.node_id: [(row.name, row.host, row.port) for row in node.listeners] for node in quorum.nodes}
    assert listeners[1] == [("PLAINTEXT", "b1", INSIDE), ("HOST", "host1", HOST)]
    assert listeners[3] == [("PLAINTEXT", "b3", INSIDE)]


def test_brokers_are_upgraded_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker of the version before registers its only address, which the clients of all listeners get."""
    encode = znodes._registration_fields

    def encode_former(broker: BrokerRegistration) -> dict[str, object]:
        fields = encode(broker)
        if broker.id in former:
            fields.pop("endpoints", None)
        return fields

    former = {2, 3}
    monkeypatch.setattr(znodes, "_registration_fields", encode_former)

    @simulated(TwoNetworks, [0])
    async def story(s: TwoNetworks) -> None:
        assert await s.addresses(HOST) == {1: "host1:19092", 2: "b2:9092", 3: "b3:9092"}
        assert await s.addresses(INSIDE) == {id: f"b{id}:9092" for id in (1, 2, 3)}
        await s.create([2, 1, 3], [3, 1, 2], name="t")
        assert {partition.error_code for partition in (await s.metadata(HOST)).topics[0].partitions} == {0}
        for node_id in (2, 3):
            machine = s.machines[node_id]
            await machine.stop()
            former.discard(node_id)
            machine.configs |= two_listeners(node_id)
            await machine.start()
            expected = {id: f"b{id}:9092" if id in former else f"host{id}:19092" for id in (1, 2, 3)}
            while await s.addresses(HOST) != expected:
                await asyncio.sleep(0.1)
            assert await s.addresses(HOST, node_id) == expected

    story(0)


@broker_test(
    listeners="PLAINTEXT://broker:9092,HOST://broker:19092",
    listener_security_protocol_map=PROTOCOLS,
    **{"listener.name.host.max.connections": "1", "max.connections": "3"},
)
async def test_each_listener_counts_its_connections(m: Machine) -> None:
    async def connect(port: int) -> Client:
        _, client = await m.loop.create_connection(lambda: Client(m.loop), "broker", port)
        await asyncio.sleep(0.1)
        return client

    first, second = await connect(HOST), await connect(HOST)
    assert (first.closed.done(), second.closed.done()) == (False, True)
    others = [await connect(INSIDE) for _ in range(3)]
    assert [client.closed.done() for client in others] == [False, False, True]
    listeners = m.broker._server.listeners
    assert {name: (each.accepted, each.connections) for name, each in listeners.items()} == {
        "HOST": (2, 1), "PLAINTEXT": (3, 2),
    }  # fmt: skip
    assert m.broker._server.context.errors.closed == {"max.connections reached": 2}
    for client in (first, *others):
        client.close()
