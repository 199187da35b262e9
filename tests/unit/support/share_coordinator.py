"""A share coordinator with its handlers, in virtual time and on a log in memory."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from types import SimpleNamespace
from typing import Any, TypeVar

from kbroker.common import KafkaError, TopicPartition
from kbroker.coordinator.share.records import ShareRecord, ShareSnapshot, decode_record
from kbroker.coordinator.share.share_coordinator import ShareCoordinator
from kbroker.coordinator.share.share_partition_state import SharePartitionKey, StateBatch, StateWrite
from kbroker.coordinator.share.share_shard import ShareGroupOffset
from kbroker.metadata.image import (
    BrokerRegistration,
    MetadataDelta,
    MetadataImage,
    PartitionChange,
    PartitionRegistration,
    TopicImage,
)
from kbroker.metadata.topics.topic_names import SHARE_GROUP_STATE_TOPIC
from protocol.errors import ErrorCode
from protocol.records.batch import body_of, iter_headers
from protocol.records.record import iter_records
from tests.unit.support.handlers import respond
from tests.unit.support.internal_log import MemoryLog, VirtualLoop, virtual_environment

T = TypeVar("T")
NODE = 1
TOPIC_ID = b"t" * 16
TP = TopicPartition(SHARE_GROUP_STATE_TOPIC, 0)
KEY = SharePartitionKey("g", TOPIC_ID, 0)
DEFAULTS = {
    "node_id": NODE,
    "message_max_bytes": 1 << 20,
    "share_coordinator_append_linger_ms": -1,
    "share_coordinator_load_buffer_size": 5 << 20,
    "share_coordinator_snapshot_update_records_per_snapshot": 500,
    "share_coordinator_state_topic_compression_codec": 0,
    "share_coordinator_state_topic_num_partitions": 1,
    "share_coordinator_write_timeout_ms": 5000,
}
# A range as (first, last, state, delivery count).
Range = tuple[int, int, int, int]


class Harness:
    """The share coordinator of one broker, with a topic of two partitions."""

    def __init__(self, log: MemoryLog | None = None, *, topic_id: bytes = TOPIC_ID, **config: Any) -> None:
        self.loop = VirtualLoop()
        self.environment = virtual_environment(self.loop)
        self.log = log or MemoryLog()
        self.config: Any = SimpleNamespace(**{**DEFAULTS, **config})
        self.metadata = MetadataImage()
        self.metadata.brokers[NODE] = BrokerRegistration(NODE, "127.0.0.1", 9092)
        self.share_states = ShareCoordinator(self.environment, self.log, self.metadata, lambda: self.config)
        self.services: Any = SimpleNamespace(metadata=self.metadata, share_states=self.share_states)
        self.run(self.share_states.start())
        self.add_topic(SHARE_GROUP_STATE_TOPIC, self.config.share_coordinator_state_topic_num_partitions, b"s" * 16)
        self.add_topic("t", 2, topic_id)
        self.loop.run_ready()

    def close(self) -> None:
        self.run(self.share_states.stop())
        self.loop.run_ready()
        for task in asyncio.all_tasks(self.loop):
            task.cancel()
        self.loop.run_ready()
        self.loop.close()

    def crash(self, log: MemoryLog | None = None, **config: Any) -> "Harness":
        """Return another broker with the same log, at the same time. This one stops as it is."""
        topic_id = self.metadata.topics["t"].topic_id if "t" in self.metadata.topics else TOPIC_ID
        successor = Harness(log or self.log, topic_id=topic_id, **{**vars(self.config), **config})
        clock, successor_clock = self.environment.clock, successor.environment.clock
        successor_clock.skew_ms += clock.now_ms() - successor_clock.now_ms()  # type: ignore[attr-defined]
        return successor

    def run(self, awaitable: Awaitable[T]) -> T:
        async def wait() -> T:
            return await awaitable

        return self.loop.run_until_complete(wait())

    # The cluster.

    def add_topic(self, name: str, partitions: int, topic_id: bytes) -> None:
        topic = TopicImage(name, topic_id)
        topic.partitions = [PartitionRegistration(NODE, 0, [NODE], [NODE]) for _ in range(partitions)]
        delta = MetadataDelta(created=[topic])
        delta.partitions = [
            PartitionChange(TopicPartition(name, index), topic_id, None, image)
            for index, image in enumerate(topic.partitions)
        ]
        self.apply(delta)

    def delete_topic(self, name: str) -> None:
        topic = self.metadata.topics[name]
        delta = MetadataDelta(deleted=[topic])
        delta.partitions = [
            PartitionChange(TopicPartition(name, index), topic.topic_id, image, None)
            for index, image in enumerate(topic.partitions)
        ]
        self.apply(delta)
        self.loop.run_ready()

    def elect(self, leader: int) -> None:
        """Elect a leader of the only partition of __share_group_state."""
        topic = self.metadata.topics[SHARE_GROUP_STATE_TOPIC]
        old = topic.partitions[0]
        new = topic.partitions[0] = PartitionRegistration(leader, old.leader_epoch + 1, old.replicas, old.isr)
        self.apply(MetadataDelta(updated=[topic], partitions=[PartitionChange(TP, topic.topic_id, old, new)]))
        self.loop.run_ready()

    def apply(self, delta: MetadataDelta) -> None:
        self.metadata.apply(delta)
        self.share_states.on_delta(delta)

    # Requests.

    def send(self, request: Any, version: int) -> Any:
        """Return the response of a request's handler."""
        return self.run(respond(self.services, request, version))

    def start(self, operation: Awaitable[T]) -> "asyncio.Task[T]":
        """Start an operation that may be delayed."""

        async def wait() -> T:
            return await operation

        task = self.loop.create_task(wait())
        self.loop.run_ready()
        return task

    def call(self, operation: Callable[..., Awaitable[T]], *arguments: Any) -> T | ErrorCode:
        """Return the result of an operation that needs no time to pass, or its error code."""
        try:
            return outcome(self.start(operation(*arguments)))
        except KafkaError as error:
            return error.code

    def initialize(self, epoch: int = 0, start: int = 0, key: SharePartitionKey = KEY) -> Any:
        return self.call(self.share_states.initialize, key, epoch, start)

    def read(self, leader: int = 0, key: SharePartitionKey = KEY) -> Any:
        return self.call(self.share_states.read, key, leader)

    def write(self, *batches: Range, start: int = -1, leader: int = 0, state: int = 0, key: Any = KEY) -> Any:
        return self.call(self.share_states.write, key, change(*batches, start=start, leader=leader, state=state))

    # State.

    @property
    def partitions(self) -> dict[SharePartitionKey, ShareGroupOffset]:
        return self.share_states.runtime.contexts()[0].shard.partitions

    def records(self) -> list[ShareRecord]:
        """Return the records of all partitions of the log."""
        return [record for batches in self.log.batches.values() for record in decoded(map(bytes, batches))]


def change(*batches: Range, start: int = -1, leader: int = 0, state: int = 0) -> StateWrite:
    return StateWrite(state, leader, start, 0, tuple(StateBatch(*batch) for batch in batches))


def outcome(task: "asyncio.Task[T]") -> T | ErrorCode:
    """Return the result of a task that is done, or its error code."""
    assert task.done(), "the operation waits"
    error = task.exception()
    return error.code if isinstance(error, KafkaError) else task.result()


def encoded(batches: Iterable[bytes]) -> list[tuple[bytes, bytes | None]]:
    """Return the keys and values of the records in batches."""
    found = []
    for batch in batches:
        for pos, header in iter_headers(batch):
            body = memoryview(body_of(batch, pos, header.size))
            found += [(bytes(record.key or b""), record.value) for record in iter_records(body, header.count, 0)]
    return [(key, None if value is None else bytes(value)) for key, value in found]


def decoded(batches: Iterable[bytes]) -> list[ShareRecord]:
    records = [decode_record(key, value) for key, value in encoded(batches)]
    assert None not in records
    return [record for record in records if record is not None]


def without_times(record: ShareRecord) -> ShareRecord:
    return record._replace(create_ms=0, write_ms=0) if isinstance(record, ShareSnapshot) else record
