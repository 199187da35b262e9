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
from kbroker.metadata.topics.topic_names import SHARE_GROUP_STATE_TOPIC
from protocol.errors import ErrorCode
from protocol.records.batch import body_of, iter_headers
from protocol.records.record import iter_records
from tests.unit.support.coordinator_harness import NODE, CoordinatorHarness
from tests.unit.support.handlers import respond
from tests.unit.support.internal_log import MemoryLog

T = TypeVar("T")
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


class Harness(CoordinatorHarness):
    """The share coordinator of one broker, with a topic of two partitions."""

    def __init__(self, log: MemoryLog | None = None, *, topic_id: bytes = TOPIC_ID, **config: Any) -> None:
        super().__init__(log, DEFAULTS | config)
        self.share_states = ShareCoordinator(self.environment, self.log, self.metadata, lambda: self.config)
        self.services: Any = SimpleNamespace(metadata=self.metadata, share_states=self.share_states, authorizer=None)
        self.coordinators = (self.share_states,)
        self.start_coordinators()
        self.create(SHARE_GROUP_STATE_TOPIC, self.config.share_coordinator_state_topic_num_partitions, b"s" * 16)
        self.create("t", 2, topic_id)
        self.loop.run_ready()

    def crash(self, log: MemoryLog | None = None, **config: Any) -> "Harness":
        """Return another broker with the same log, at the same time. This one stops as it is."""
        topic_id = self.metadata.topics["t"].topic_id if "t" in self.metadata.topics else TOPIC_ID
        successor = Harness(log or self.log, topic_id=topic_id, **{**vars(self.config), **config})
        self.set_clock_of(successor)
        return successor

    def delete_topic(self, name: str) -> None:
        self.delete(name)
        self.loop.run_ready()

    def elect(self, leader: int) -> None:
        """Elect a leader of the only partition of __share_group_state."""
        self.elect_leader(SHARE_GROUP_STATE_TOPIC, 0, leader)
        self.loop.run_ready()

    # Requests.

    def send(self, request: Any, version: int) -> Any:
        """Return the response of a request's handler."""
        return self.run(respond(self.services, request, version))

    def call(self, operation: Callable[..., Awaitable[T]], *arguments: Any) -> T | ErrorCode:
        """Return the result of an operation that needs no time to pass, or its error code."""
        try:
            return outcome(self.start_operation(operation(*arguments)))
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
