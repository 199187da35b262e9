"""A transaction coordinator in virtual time, with a log in memory and fake partitions."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from kbroker.common import KafkaError, TopicPartition
from kbroker.coordinator.transaction.transaction_coordinator import TransactionCoordinator
from kbroker.coordinator.transaction.transaction_metadata import (
    TransactionEntry,
    TransactionMetadata,
    TransactionRecord,
    TransactionState,
    decode_record,
)
from kbroker.metadata.features import TRANSACTION_VERSION, FinalizedFeatures
from kbroker.metadata.topics.topic_names import TRANSACTION_STATE_TOPIC
from kbroker.storage.producers.transactions import TransactionMarker
from protocol.errors import ErrorCode
from protocol.records.batch import body_of, iter_headers
from protocol.records.record import iter_records
from tests.unit.support.coordinator_harness import NODE, CoordinatorHarness
from tests.unit.support.internal_log import MemoryLog

T = TypeVar("T")
Producer = tuple[int, int]
TIMEOUT_MS = 60_000
DEFAULTS = {
    "node_id": NODE,
    "message_max_bytes": 1 << 20,
    "transaction_abort_timed_out_transaction_cleanup_interval_ms": 10_000,
    "transaction_max_timeout_ms": 900_000,
    "transaction_remove_expired_transaction_cleanup_interval_ms": 3_600_000,
    "transaction_state_log_load_buffer_size": 5 << 20,
    "transaction_state_log_num_partitions": 1,
    "transactional_id_expiration_ms": 604_800_000,
}
A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)


class FakeProducerIds:
    """With `delayed`, an id takes an iteration of the event loop, as when a block of ids has to be allocated."""

    def __init__(self) -> None:
        self.last_id = 999
        self.error: ErrorCode | None = None
        self.delayed = True

    async def generate_producer_id(self) -> int:
        if self.delayed:
            await asyncio.sleep(0)
        if self.error is not None:
            raise KafkaError(self.error)
        self.last_id += 1
        return self.last_id


class FakeMarkerWriter:
    """Writes markers at once, or fails with `errors`, or while `held` when the test calls `complete`."""

    def __init__(self) -> None:
        self.written: list[tuple[TopicPartition, TransactionMarker]] = []
        # The partition of every attempt.
        self.attempts: list[TopicPartition] = []
        self.errors: dict[TopicPartition, ErrorCode] = {}
        self.held = False
        self.waiting: list[tuple[TopicPartition, TransactionMarker, Callable[[ErrorCode], None]]] = []

    def write(self, tp: TopicPartition, marker: TransactionMarker, on_written: Callable[[ErrorCode], None]) -> None:
        self.attempts.append(tp)
        if self.held:
            self.waiting.append((tp, marker, on_written))
            return
        error = self.errors.get(tp, ErrorCode.NONE)
        if error is ErrorCode.NONE:
            self.written.append((tp, marker))
        on_written(error)

    def complete(self, error: ErrorCode = ErrorCode.NONE) -> None:
        """Complete all pending markers."""
        waiting, self.waiting = self.waiting, []
        for tp, marker, on_written in waiting:
            if error is ErrorCode.NONE:
                self.written.append((tp, marker))
            on_written(error)


class Harness(CoordinatorHarness):
    """The transaction coordinator of one broker, with the topics a (2 partitions) and b (1)."""

    def __init__(self, log: MemoryLog | None = None, *, version: int = 2, **config: Any) -> None:
        super().__init__(log, DEFAULTS | config)
        self.metadata.features = FinalizedFeatures(1, {TRANSACTION_VERSION: version})
        self.producer_ids: Any = FakeProducerIds()
        self.markers: Any = FakeMarkerWriter()
        self.transactions = TransactionCoordinator(
            self.environment, self.log, self.metadata, lambda: self.config, self.producer_ids, self.markers
        )
        self.coordinators = (self.transactions,)
        self.start_coordinators()
        transaction_topic = (TRANSACTION_STATE_TOPIC, self.config.transaction_state_log_num_partitions)
        for name, count in (transaction_topic, ("a", 2), ("b", 1)):
            self.create(name, count)
        self.loop.run_ready()

    def crash(self, *, version: int = 2, **config: Any) -> "Harness":
        """Return another broker with the same log, at the same time. This one stops as it is."""
        successor = Harness(self.log, version=version, **config)
        self.set_clock_of(successor)
        return successor

    def delete_topic(self, name: str) -> None:
        self.delete(name)

    def elect(self, leader: int, index: int = 0) -> None:
        """Elect a leader for a partition of __transaction_state."""
        self.elect_leader(TRANSACTION_STATE_TOPIC, index, leader)
        self.loop.run_ready()

    # A producer's requests.

    def call(self, operation: Awaitable[T]) -> T | ErrorCode:
        """Return the result of an operation that needs no time to pass, or its error code."""
        task = self.start_operation(operation)
        assert task.done(), "the operation waits"
        error = task.exception()
        if isinstance(error, KafkaError):
            return error.code
        return task.result()

    def init(self, id: str = "t", timeout_ms: int = TIMEOUT_MS, producer: Producer = (-1, -1)) -> Any:
        return self.call(self.transactions.init_producer_id(id, timeout_ms, *producer))

    def add(self, producer: Producer, *partitions: TopicPartition, id: str = "t", version: int = 2) -> Any:
        return self.call(self.transactions.add_partitions(id, *producer, partitions, version))

    def end(self, producer: Producer, committed: bool = True, *, id: str = "t", version: int = 2) -> Any:
        return self.call(self.transactions.end_transaction(id, *producer, committed, version))

    def commit(self, producer: Producer, *, id: str = "t", version: int = 2) -> Any:
        return self.end(producer, True, id=id, version=version)

    def abort(self, producer: Producer, *, id: str = "t", version: int = 2) -> Any:
        return self.end(producer, False, id=id, version=version)

    def verify(self, producer: Producer, *partitions: TopicPartition, id: str = "t") -> Any:
        try:
            return self.transactions.verify_partitions(id, *producer, partitions)
        except KafkaError as error:
            return error.code

    # State.

    def state(self, id: str = "t") -> str:
        return self.transactions.describe(id).state.state_name

    def entry(self, id: str = "t") -> TransactionEntry:
        return self.transactions.runtime.context(id).shard.entries[id]

    def records(self) -> list[TransactionRecord]:
        """Return the records in the log."""
        decoded = []
        for batches in self.log.batches.values():
            for batch in batches:
                for pos, header in iter_headers(batch):
                    body = memoryview(body_of(batch, pos, header.size))
                    for record in iter_records(body, header.count, header.base_timestamp):
                        decoded.append(decode_record(record.key, record.value))
        return [record for record in decoded if record is not None]

    def states(self) -> list[str]:
        """Return the states of the records in the log, in order; "-" for a tombstone."""
        return [
            record.state.state_name if isinstance(record, TransactionMetadata) else "-" for record in self.records()
        ]


def open_transaction(h: Harness, *partitions: TopicPartition, version: int = 2) -> Producer:
    """Return a producer with an open transaction in the partitions, or in a-0."""
    producer: Producer = h.init()
    assert h.add(producer, *(partitions or (A0,)), version=version) is None
    return producer


def set_epoch(h: Harness, epoch: int, state: TransactionState = TransactionState.EMPTY, **changes: object) -> None:
    """Change the committed metadata of "t", as if it had had many transactions."""
    entry = h.entry()
    entry.metadata = entry.metadata._replace(producer_epoch=epoch, state=state, **changes)  # type: ignore[arg-type]
