"""Several brokers' replicas on one loop in virtual time, without network, coordination or clients.

`@replica_test` makes a test from a coroutine with a ReplicaCluster as its argument. The test is the controller: it
elects leaders and says which brokers learn of it. Fetches go from the followers' fetchers to the leaders' fetch
managers in their wire format; a test can hold them, change the responses, or cut the connection.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from copy import copy
from itertools import zip_longest
from random import Random
from typing import Any, cast

from kbroker.common import NO_LEADER, Buffer, KafkaError, TopicPartition
from kbroker.config import BrokerConfig
from kbroker.metadata.image import (
    BrokerRegistration,
    MetadataDelta,
    MetadataImage,
    PartitionChange,
    PartitionRegistration,
    TopicImage,
)
from kbroker.replica.assigned_partitions import AssignedPartitions
from kbroker.replica.fetch.fetch_manager import FetchManager
from kbroker.replica.fetcher.replica_fetcher import ReplicaFetcherManager
from kbroker.replica.logs.log_manager import LogManager
from kbroker.replica.partition import Partition
from kbroker.replica.produce.produce_response import DelayedProduce
from kbroker.replica.replica_manager import ReplicaManager
from kbroker.replica.replication_throttle import leader_quota
from kbroker.runtime.delayed_response import DelayedResponse
from kbroker.runtime.environment import Environment
from kbroker.simulation.disk.disk import SimDisk
from kbroker.simulation.runtime.environment import SimClock, SimProcesses
from kbroker.simulation.runtime.loop import SimLoop
from protocol.errors import ErrorCode
from protocol.fast.fetch import FetchResponse, decode_fetch_request, encode_fetch_response
from protocol.messages.k02_list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from protocol.records.batch import build_batch, iter_headers
from tests.unit.support.async_test import until
from tests.unit.support.log_lab import content

NOW = 1_700_000_000_000
EARLIEST = -2


class Node:
    """One broker: its disk, logs and replicas. `epoch`: its broker epoch."""

    def __init__(self, cluster: "ReplicaCluster", node_id: int, disk: SimDisk, epoch: int, configs: Any) -> None:
        loop, clock = cluster.loop, cluster.clock
        self.id, self.epoch, self.disk = node_id, epoch, disk
        random = Random(f"{node_id}/{epoch}")

        def offload(fn: Callable[..., Any], /, *args: object) -> Awaitable[Any]:
            return loop.run_in_executor(None, fn, *args)

        self.environment = Environment(loop, clock, disk, random, offload, SimProcesses(loop, disk, clock, random))
        # A test may replace it.
        self.config = BrokerConfig.load({"node.id": str(node_id), **configs})
        self.image = MetadataImage()
        self.logs = LogManager(self.environment, "/data", lambda: self.config)
        self.replicas = ReplicaManager(self.environment, node_id, self.image, self.logs)
        self.fetching = FetchManager(self.environment, self.replicas, 1000, 1 << 20, leader_quota(lambda: self.config))
        self.fetchers = ReplicaFetcherManager(
            self.environment, node_id, lambda: self.epoch, EndPoint(cluster, self), lambda: self.config
        )
        self.assigned = AssignedPartitions(self.environment, self.replicas, self.image, fetchers=self.fetchers)
        self.is_running = True

    def partition(self, index: int = 0, topic: str = "t") -> Partition:
        partition = self.replicas.get(topic, index)
        assert partition is not None
        return partition

    def content(self, index: int = 0, topic: str = "t") -> bytes:
        """Return the bytes of the partition's log."""
        return content(self.partition(index, topic).log)


class EndPoint:
    """The LeaderEndPoint of one broker."""

    def __init__(self, cluster: "ReplicaCluster", follower: Node) -> None:
        self._cluster = cluster
        self._follower = follower

    async def fetch(self, broker_id: int, version: int, body: Sequence[Buffer], timeout_ms: int) -> memoryview:
        cluster, follower = self._cluster, self._follower
        route = (broker_id, follower.id)
        await cluster.pass_over(route)
        leader = cluster.nodes[broker_id]
        request = decode_fetch_request(memoryview(b"".join(body)), 0, version)
        response = leader.fetching.fetch(request, True, "PLAINTEXT")
        if isinstance(response, DelayedResponse):
            response = await response
        cluster.fetches[route] = cluster.fetches.get(route, 0) + 1
        parts = [bytes(cast(bytes, part)) for part in encode_fetch_response(cluster.change(response), version)]
        await cluster.pass_over(route)
        if cluster.nodes[broker_id] is not leader or not follower.is_running:
            raise KafkaError(ErrorCode.NETWORK_EXCEPTION)
        return memoryview(b"".join(parts))

    async def list_offsets(self, broker_id: int, request: ListOffsetsRequest, timeout_ms: int) -> ListOffsetsResponse:
        await self._cluster.pass_over((broker_id, self._follower.id))
        topic = request.topics[0]
        asked = topic.partitions[0]
        row = ListOffsetsPartitionResponse(partition_index=asked.partition_index)
        try:
            partition = self._cluster.nodes[broker_id].replicas.leader(topic.name, asked.partition_index)
            partition.check_leader(asked.current_leader_epoch)
            log = partition.log
            row.offset = log.log_start_offset if asked.timestamp == EARLIEST else log.log_end_offset
        except KafkaError as error:
            row.error_code = error.code
        return ListOffsetsResponse(topics=[ListOffsetsTopicResponse(name=topic.name, partitions=[row])])


class ReplicaCluster:
    """`cut`, `held`: routes (leader, follower) that fail, or that keep requests and responses until `release`.

    `change`: applied to each response before it is sent. `fetches`: the responses by route.
    """

    def __init__(self, loop: SimLoop) -> None:
        self.loop = loop
        self.clock = SimClock(loop)
        self.nodes: dict[int, Node] = {}
        self.topics: dict[str, TopicImage] = {}
        self.cut: set[tuple[int, int]] = set()
        self.held: dict[tuple[int, int], asyncio.Future[None]] = {}
        self.fetches: dict[tuple[int, int], int] = {}
        self.change: Callable[[FetchResponse], FetchResponse] = lambda response: response
        self._tasks: set[asyncio.Task[None]] = set()
        self._topic_ids = 0

    # Brokers.

    async def start(self, *node_ids: int, **configs: str) -> None:
        """Start brokers with empty disks."""
        for node_id in node_ids:
            disk = SimDisk(self.clock, Random(node_id))
            disk.makedirs("/data")
            await self._start(node_id, disk, 1, configs)

    async def restart(self, node_id: int, *, power: bool = False, empty: bool = False, **configs: str) -> Node:
        """Kill a broker and start it again on its disk, after a power loss, or on an empty disk."""
        old = self.nodes[node_id]
        await self.kill(node_id)
        if empty:
            disk = SimDisk(self.clock, Random(f"{node_id}/{old.epoch}"))
            disk.makedirs("/data")
        else:
            disk = old.disk.after_crash(power, keep_running=True)
        return await self._start(node_id, disk, old.epoch + 1, configs)

    async def kill(self, node_id: int) -> None:
        node = self.nodes[node_id]
        node.is_running = False
        await node.fetchers.stop()

    async def _start(self, node_id: int, disk: SimDisk, epoch: int, configs: dict[str, str]) -> Node:
        dotted = {name.replace("_", "."): value for name, value in configs.items()}
        node = self.nodes[node_id] = Node(self, node_id, disk, epoch, dotted)
        node.image.apply(MetadataDelta(created=[copy(topic) for topic in self.topics.values()]))
        await node.assigned.start()
        for running in self.nodes.values():
            registration = {id: BrokerRegistration(id, "b", 1, epoch=other.epoch) for id, other in self.nodes.items()}
            running.image.apply(MetadataDelta(brokers=dict(registration)))
        node.assigned.assign_roles()
        return node

    # Metadata: the test is the controller.

    async def create_topic(self, *replicas: int, name: str = "t", partitions: int = 1, **configs: str) -> None:
        """Create a topic whose leader is the first replica, with all replicas in sync."""
        self._topic_ids += 1
        rows = [PartitionRegistration(replicas[0], 1, list(replicas), list(replicas)) for _ in range(partitions)]
        dotted = {key.replace("_", "."): value for key, value in configs.items()}
        topic = TopicImage(name, self._topic_ids.to_bytes(16, "big"), False, dotted, rows)
        self.topics[name] = topic
        changes = [PartitionChange(TopicPartition(name, n), topic.topic_id, None, row) for n, row in enumerate(rows)]
        for node in self.nodes.values():
            self._apply(node, MetadataDelta(created=[copy(topic)], partitions=changes))
        await self.settle()

    async def replicate(self, *replicas: int, partitions: int = 1, **configs: str) -> None:
        """Start brokers, and create topic "t" with a replica on each; the first one leads."""
        await self.start(*replicas)
        await self.create_topic(*replicas, partitions=partitions, **configs)

    async def delete_topic(self, name: str = "t") -> None:
        topic = self.topics.pop(name)
        changes = [
            PartitionChange(TopicPartition(name, n), topic.topic_id, row, None)
            for n, row in enumerate(topic.partitions)
        ]
        for node in self.nodes.values():
            self._apply(node, MetadataDelta(deleted=[topic], partitions=changes))
        await self.settle()

    def elect(
        self, leader: int, *, isr: Sequence[int] | None = None, index: int = 0, topic: str = "t",
        replicas: Sequence[int] | None = None, unaware: Sequence[int] = (),
    ) -> None:  # fmt: skip
        """Start a leader epoch. The `unaware` brokers do not learn of it before `tell`."""
        image = self.topics[topic]
        old = image.partitions[index]
        new = PartitionRegistration(
            leader, old.leader_epoch + 1, list(replicas or old.replicas), list(isr or old.isr),
            partition_epoch=old.partition_epoch + 1,
        )  # fmt: skip
        image.partitions = [*image.partitions[:index], new, *image.partitions[index + 1 :]]
        for node_id in self.nodes:
            if node_id not in unaware:
                self.tell(node_id, topic)

    def tell(self, node_id: int, topic: str = "t") -> None:
        """Update the image of a broker."""
        node, new = self.nodes[node_id], copy(self.topics[topic])
        rows = zip_longest(node.image.topics[topic].partitions, new.partitions)
        changes = [
            PartitionChange(TopicPartition(topic, n), new.topic_id, old, row)
            for n, (old, row) in enumerate(rows)
            if old != row
        ]
        self._apply(node, MetadataDelta(updated=[new], partitions=changes))

    def _apply(self, node: Node, delta: MetadataDelta) -> None:
        if not node.is_running:
            return
        node.image.apply(delta)
        node.assigned.on_roles_changed(delta)
        self.spawn(node.assigned.apply_delta(delta))

    # The network.

    async def pass_over(self, route: tuple[int, int]) -> None:
        await asyncio.sleep(0.0002)
        held = self.held.get(route)
        if held is not None:
            await held
        if route in self.cut or not all(self.nodes[node_id].is_running for node_id in route):
            raise KafkaError(ErrorCode.NETWORK_EXCEPTION, "cut")

    def hold(self, leader: int, follower: int) -> None:
        self.held[leader, follower] = self.loop.create_future()

    def release(self, leader: int, follower: int) -> None:
        self.held.pop((leader, follower)).set_result(None)

    # Records.

    def produce(self, node_id: int, *values: bytes, acks: int = -1, index: int = 0, topic: str = "t") -> "Produced":
        """Append a batch at a broker, as the leader."""
        batch = build_batch([(NOW, None, value, ()) for value in values])
        response = self.nodes[node_id].replicas.append_records(
            [(topic, [(index, memoryview(batch))])], acks, 30_000, 11, "PLAINTEXT", in_turn=False
        )
        return Produced(response)

    async def commit(self, node_id: int, *values: bytes, index: int = 0, topic: str = "t") -> None:
        """Append a batch at the leader, and wait until it is acknowledged with acks=all."""
        produced = self.produce(node_id, *values, index=index, topic=topic)
        await self.until(lambda: produced.code == 0)

    async def until(self, condition: Callable[[], object], seconds: float = 30.0) -> None:
        """Wait in virtual time until a condition is true."""
        await until(condition, seconds)

    async def settle(self) -> None:
        """Wait until the logs of the last change are open."""
        while self._tasks:
            await asyncio.sleep(0.001)

    async def until_equal(self, *node_ids: int, index: int = 0, topic: str = "t", seconds: float = 10.0) -> bytes:
        """Wait until the logs of all brokers are equal to the first one's, and return its bytes."""
        nodes = [self.nodes[node_id] for node_id in node_ids]

        def are_equal() -> bool:
            logs = [node.partition(index, topic).log for node in nodes]
            # Equal ends are a reason to read: logs may have them while they still differ.
            return len({log.log_end_offset for log in logs}) == 1 and len({content(log) for log in logs}) == 1

        await self.until(are_equal, seconds)
        return nodes[0].content(index, topic)

    def spawn(self, coroutine: Any) -> None:
        task = self.loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def end(self) -> None:
        for held in self.held.values():
            held.set_result(None)
        self.held.clear()
        for node in self.nodes.values():
            if node.is_running:
                node.is_running = False
                await node.assigned.stop()
        await asyncio.sleep(120)
        tasks = asyncio.all_tasks(self.loop) - {asyncio.current_task(self.loop)}
        assert not tasks, f"left behind: {tasks}"


class Produced:
    """A batch that was appended. `code`: its error, None while it waits for the replicas."""

    def __init__(self, response: Any) -> None:
        self.code: int | None = None
        self.base_offset = -1
        if isinstance(response, DelayedProduce):
            response.on_complete(self._complete)
        else:
            self._complete(response)

    def _complete(self, response: Any) -> None:
        result = response[0][1][0]
        self.code, self.base_offset = result[1], result[2]


def offsets(data: bytes) -> list[tuple[int, int]]:
    """Return (base offset, leader epoch) of each batch."""
    return [(header.base_offset, header.leader_epoch) for _, header in iter_headers(data)]


def replica_test(test: Callable[[ReplicaCluster], Awaitable[None]]) -> Callable[[], None]:
    def run_test() -> None:
        loop = SimLoop(1)

        async def run() -> None:
            cluster = ReplicaCluster(loop)
            await test(cluster)
            await cluster.end()

        try:
            loop.run_until_complete(run())
        finally:
            loop.close()

    run_test.__name__, run_test.__doc__, run_test.__module__ = test.__name__, test.__doc__, test.__module__
    return run_test


__all__ = ["NO_LEADER", "Node", "Produced", "ReplicaCluster", "offsets", "replica_test"]
