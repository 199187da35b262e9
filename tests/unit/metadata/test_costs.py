"""What a change costs, in clusters of 200 and of 4,000 partitions: reads, writes and bytecodes, never seconds."""

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from types import FrameType
from typing import Any

import pytest

from kbroker.config.config_def import ConfigResourceType
from kbroker.coordination.embedded import EmbeddedStore
from kbroker.metadata.image import MetadataDelta
from kbroker.metadata.store.change_log import RECENT_CHANGES
from kbroker.metadata.topics.topic_requests import NewTopic, TopicNameOrId
from scripts.benchmark.scale.metadata_cluster import CONTROLLER, FOLLOWER, MetadataCluster, Traffic
from tests.unit.support.async_test import async_test
from tests.unit.support.memory_disk import MemoryDisk, make_environment, settle

TOPIC_PARTITIONS = 50
SIZES = (4, 80)  # topics
BROKERS = 6
# Numbers of chunks and changes have more digits in the larger cluster.
DIGITS = 40

Operation = Callable[[MetadataCluster], Awaitable[None]]


class Bytecodes:
    """Counts the bytecodes that the modules of kbroker.metadata execute: loops of any kind over what did not change."""

    def __init__(self) -> None:
        self.count = 0

    def __enter__(self) -> "Bytecodes":
        sys.settrace(self._on_call)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _on_call(self, frame: FrameType, event: str, arg: object) -> Any:
        if "/kbroker/metadata/" not in frame.f_code.co_filename:
            return None
        frame.f_trace_opcodes = True
        return self._on_opcode

    def _on_opcode(self, frame: FrameType, event: str, arg: object) -> Any:
        self.count += event == "opcode"
        return self._on_opcode


@asynccontextmanager
async def cluster_of(topics: int) -> AsyncIterator[MetadataCluster]:
    environment = make_environment(MemoryDisk())
    cluster = MetadataCluster(environment, await EmbeddedStore.open(environment, "/data"))
    await cluster.start(BROKERS)
    # The last chunk has room in both sizes.
    await cluster.create_topics(topics, TOPIC_PARTITIONS)
    for number in range(RECENT_CHANGES):  # changes of four digits at most
        await cluster.controller.controller.alter_configs(
            ConfigResourceType.BROKER, "9", {"log.retention.ms": str(number + 1)}
        )
    await settle()
    yield cluster
    await cluster.close()


async def create(cluster: MetadataCluster) -> None:
    await cluster.create([NewTopic("new", 3, 3)])


async def delete(cluster: MetadataCluster) -> None:
    (deletion,) = await cluster.controller.controller.topics.delete_topics([TopicNameOrId("topic-1")])
    assert deletion.error is None


async def alter_config(cluster: MetadataCluster) -> None:
    overrides = {"min.insync.replicas": "2"}
    await cluster.controller.controller.alter_configs(ConfigResourceType.TOPIC, "topic-1", overrides)


async def shrink_isr(cluster: MetadataCluster) -> None:
    await cluster.shrink_isr("topic-1", 7)


async def elect(cluster: MetadataCluster) -> None:
    await cluster.elect_preferred("topic-1", 9)


async def reassign(cluster: MetadataCluster) -> None:
    await cluster.prefer_second("topic-1", 8)


async def cost(topics: int, operation: Operation) -> tuple[Traffic, Traffic, int, list[MetadataDelta]]:
    """Return what the operation costs the controller and a follower, their bytecodes, and the follower's deltas."""
    async with cluster_of(topics) as cluster:
        if operation is elect:
            await cluster.prefer_second("topic-1", 9)
        await settle()
        deltas: list[MetadataDelta] = []
        cluster.members[FOLLOWER].add_roles_listener(deltas.append)
        before = {broker_id: session.traffic.copy() for broker_id, session in cluster.sessions.items()}
        number = cluster.members[FOLLOWER].loader.change_log.number
        with Bytecodes() as bytecodes:
            await operation(cluster)
            while cluster.members[FOLLOWER].loader.change_log.number == number:
                await asyncio.sleep(0)
            await settle()
        controller, follower = (
            cluster.sessions[broker_id].traffic.since(before[broker_id]) for broker_id in (CONTROLLER, FOLLOWER)
        )
        assert not cluster.failures
        return controller, follower, bytecodes.count, deltas


@pytest.mark.parametrize("operation", [create, delete, alter_config, shrink_isr, elect, reassign])
@async_test
async def test_a_change_of_one_topic_costs_the_same_in_a_cluster_of_any_size(operation: Operation) -> None:
    small, large = [await cost(topics, operation) for topics in SIZES]
    for few, many in zip(small[:2], large[:2], strict=True):
        assert (few.nodes_read, few.multis, few.operations) == (many.nodes_read, many.multis, many.operations)
        assert abs(few.bytes_read - many.bytes_read) <= DIGITS
    # Not its chunk, whose rows of other topics depend on how they were created.
    assert large[2] < small[2] * 1.25
    (delta,) = large[3]
    topics = {topic.name for topic in (*delta.created, *delta.updated, *delta.deleted)}
    assert topics <= {"new", "topic-1"}
    assert {change.tp.topic for change in delta.partitions} <= {"new", "topic-1"}


@async_test
async def test_a_follower_reads_one_small_node_for_an_isr_change() -> None:
    _, follower, _, (delta,) = await cost(SIZES[1], shrink_isr)
    assert (follower.nodes_read, follower.multis) == (1, 0)
    assert follower.bytes_read < 250
    assert [change.tp for change in delta.partitions] == [("topic-1", 7)]


@async_test
async def test_the_death_of_a_broker_is_read_as_its_partitions_only() -> None:
    """Each chunk that has one of them is written once; followers read the rows, not the chunks."""
    read = []
    for topics in SIZES:
        async with cluster_of(topics) as cluster:
            await cluster.create([NewTopic("led", assignments=[(index, [5, 3, 4]) for index in range(10)])])
            await cluster.wait_until(
                lambda cluster=cluster: "led" in cluster.members[FOLLOWER].image.topics  # type: ignore[misc]
            )
            image = cluster.controller.image
            moved = sum(5 in partition.replicas for _, partition in image.partitions())
            chunks = len(cluster.controller.loader.chunks)
            before = cluster.sessions[CONTROLLER].traffic.copy(), cluster.sessions[FOLLOWER].traffic.copy()
            await cluster.kill(5)
            await cluster.wait_until_fenced(5)
            await settle()
            written = cluster.sessions[CONTROLLER].traffic.since(before[0])
            followed = cluster.sessions[FOLLOWER].traffic.since(before[1])
            # The epoch check, the change twice, the registration; and chunks with any of the moved partitions.
            assert written.multis == 1
            assert written.operations <= 4 + chunks
            read.append(followed.bytes_read / moved)
            assert cluster.members[FOLLOWER].image.topics == image.topics
    assert max(read) < 120
