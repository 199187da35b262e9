"""What the harnesses of the coordinators share: one broker in virtual time, with a log in memory."""

import asyncio
from collections.abc import Awaitable, Mapping
from types import SimpleNamespace
from typing import Any, TypeVar

from kbroker.common import TopicPartition
from kbroker.coordinator.runtime.coordinator_runtime import Coordinator
from kbroker.metadata.image import (
    BrokerRegistration,
    MetadataDelta,
    MetadataImage,
    PartitionChange,
    PartitionRegistration,
    TopicImage,
)
from tests.unit.support.internal_log import MemoryLog, VirtualLoop, virtual_environment

T = TypeVar("T")
NODE = 1


class CoordinatorHarness:
    """`coordinators`: those of the subclass, in the order in which they start."""

    coordinators: tuple[Coordinator[Any], ...]

    def __init__(self, log: MemoryLog | None, config: Mapping[str, Any]) -> None:
        self.loop = VirtualLoop()
        self.environment = virtual_environment(self.loop)
        self.log = log or MemoryLog()
        self.config: Any = SimpleNamespace(**config)
        self.metadata = MetadataImage()
        self.metadata.brokers[NODE] = BrokerRegistration(NODE, "127.0.0.1", 9092)

    def start_coordinators(self) -> None:
        for coordinator in self.coordinators:
            self.run(coordinator.start())

    def close(self) -> None:
        for coordinator in reversed(self.coordinators):
            self.run(coordinator.stop())
        self.loop.run_ready()
        for task in asyncio.all_tasks(self.loop):
            task.cancel()
        self.loop.run_ready()
        self.loop.close()

    def set_clock_of(self, successor: "CoordinatorHarness") -> None:
        """Let another broker continue at the same time."""
        clock: Any = successor.environment.clock
        clock.skew_ms += self.environment.clock.now_ms() - clock.now_ms()

    def run(self, awaitable: Awaitable[T]) -> T:
        async def wait() -> T:
            return await awaitable

        return self.loop.run_until_complete(wait())

    def start_operation(self, operation: Awaitable[T]) -> "asyncio.Task[T]":
        """Start an operation that may be delayed."""

        async def wait() -> T:
            return await operation

        task = self.loop.create_task(wait())
        self.loop.run_ready()
        return task

    # The cluster.

    def create(self, name: str, partitions: int, topic_id: bytes | None = None) -> TopicImage:
        topic = TopicImage(name, topic_id or self.environment.random.randbytes(16))
        topic.partitions = [PartitionRegistration(NODE, 0, [NODE], [NODE]) for _ in range(partitions)]
        changes = [
            PartitionChange(TopicPartition(name, index), topic.topic_id, None, image)
            for index, image in enumerate(topic.partitions)
        ]
        self.apply(MetadataDelta(created=[topic], partitions=changes))
        return topic

    def delete(self, name: str) -> None:
        topic = self.metadata.topics[name]
        changes = [
            PartitionChange(TopicPartition(name, index), topic.topic_id, image, None)
            for index, image in enumerate(topic.partitions)
        ]
        self.apply(MetadataDelta(deleted=[topic], partitions=changes))

    def elect_leader(self, name: str, index: int, leader: int) -> None:
        topic = self.metadata.topics[name]
        old = topic.partitions[index]
        new = topic.partitions[index] = PartitionRegistration(leader, old.leader_epoch + 1, old.replicas, old.isr)
        change = PartitionChange(TopicPartition(name, index), topic.topic_id, old, new)
        self.apply(MetadataDelta(updated=[topic], partitions=[change]))

    def apply(self, delta: MetadataDelta) -> None:
        self.metadata.apply(delta)
        for coordinator in self.coordinators:
            coordinator.on_delta(delta)
