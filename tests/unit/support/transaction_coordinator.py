"""A transaction coordinator in virtual time, on a log in memory, with partitions that say what the test wants."""

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, TypeVar

from kbroker.common import KafkaError, TopicPartition
from kbroker.coordinator.internal_log import TRANSACTION_STATE_TOPIC, TransactionMarker
from kbroker.coordinator.transaction.record_codec import decode_record
from kbroker.coordinator.transaction.transaction_coordinator import TransactionCoordinator
from kbroker.coordinator.transaction.transaction_metadata import Record
from kbroker.coordinator.transaction.transaction_state import TransactionState
from kbroker.metadata.features import TRANSACTION_VERSION, FinalizedFeatures
from kbroker.metadata.image import (
    BrokerRegistration,
    MetadataDelta,
    MetadataImage,
    PartitionChange,
    PartitionRegistration,
    TopicImage,
)
from protocol.errors import ErrorCode
from protocol.records.batch import body_of, iter_headers
from protocol.records.record import iter_records
from tests.unit.support.group_coordinator import NODE, MemoryLog, VirtualLoop, virtual_environment

T = TypeVar("T")
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
    """`delayed`: an id takes a turn of the loop, as when a block must be fetched."""

    def __init__(self) -> None:
        self.given = 999
        self.error: ErrorCode | None = None
        self.delayed = True

    async def generate_producer_id(self) -> int:
        if self.delayed:
            await asyncio.sleep(0)
        if self.error is not None:
            raise KafkaError(self.error)
        self.given += 1
        return self.given


class FakeMarkers:
    """Partitions that take markers at once, or answer what `errors` says, or wait while `held`."""

    def __init__(self) -> None:
        self.written: list[tuple[TopicPartition, TransactionMarker]] = []
        self.asked: list[TopicPartition] = []
        self.errors: dict[TopicPartition, ErrorCode] = {}
        self.held = False
        self.waiting: list[tuple[TopicPartition, TransactionMarker, Callable[[ErrorCode], None]]] = []

    def write_marker(self, tp: TopicPartition, marker: TransactionMarker, done: Callable[[ErrorCode], None]) -> None:
        self.asked.append(tp)
        if self.held:
            self.waiting.append((tp, marker, done))
            return
        error = self.errors.get(tp, ErrorCode.NONE)
        if error is ErrorCode.NONE:
            self.written.append((tp, marker))
        done(error)

    def answer(self, error: ErrorCode = ErrorCode.NONE) -> None:
        """All who wait."""
        waiting, self.waiting = self.waiting, []
        for tp, marker, done in waiting:
            if error is ErrorCode.NONE:
                self.written.append((tp, marker))
            done(error)


class Harness:
    """One broker's transactions, with topics a (2 partitions) and b (1)."""

    def __init__(self, log: MemoryLog | None = None, *, version: int = 2, **config: Any) -> None:
        self.loop = VirtualLoop()
        self.environment = virtual_environment(self.loop)
        self.log = log or MemoryLog()
        self.config = SimpleNamespace(**{**DEFAULTS, **config})
        self.metadata = MetadataImage()
        self.metadata.brokers[NODE] = BrokerRegistration(NODE, "127.0.0.1", 9092)
        self.metadata.features = FinalizedFeatures(1, {TRANSACTION_VERSION: version})
        self.producer_ids = FakeProducerIds()
        self.markers = FakeMarkers()
        self.transactions = TransactionCoordinator(
            self.environment, self.log, self.metadata, lambda: self.config, self.producer_ids, self.markers
        )
        self.run(self.transactions.start())
        for name, count in (
            (TRANSACTION_STATE_TOPIC, self.config.transaction_state_log_num_partitions),
            ("a", 2),
            ("b", 1),
        ):
            self.run(self.add_topic(name, count))
        self.loop.settle()

    def close(self) -> None:
        self.run(self.transactions.stop())
        self.loop.settle()
        self.loop.close()

    def restarted(self, *, version: int = 2, **config: Any) -> "Harness":
        """Another broker with the same log, at the same time; this one dies as it is, with all its memory."""
        again = Harness(self.log, version=version, **config)
        again.environment.clock.skew_ms += self.environment.clock.now_ms() - again.environment.clock.now_ms()  # type: ignore[attr-defined]
        return again

    def run(self, awaitable: Awaitable[T]) -> T:
        async def wait() -> T:
            return await awaitable

        return self.loop.run_until_complete(wait())

    # The cluster.

    async def add_topic(self, name: str, partitions: int) -> None:
        topic = TopicImage(name, self.environment.random.randbytes(16))
        topic.partitions = [PartitionRegistration(NODE, 0, [NODE], [NODE]) for _ in range(partitions)]
        delta = MetadataDelta(created=[topic])
        delta.partitions = [
            PartitionChange(TopicPartition(name, index), topic.topic_id, None, image)
            for index, image in enumerate(topic.partitions)
        ]
        await self.follow(delta)

    def delete_topic(self, name: str) -> None:
        topic = self.metadata.topics[name]
        delta = MetadataDelta(deleted=[topic])
        delta.partitions = [
            PartitionChange(TopicPartition(name, index), topic.topic_id, image, None)
            for index, image in enumerate(topic.partitions)
        ]
        self.run(self.follow(delta))

    def elect(self, leader: int, index: int = 0) -> None:
        """Another broker (or again this one) leads a partition of __transaction_state."""
        topic = self.metadata.topics[TRANSACTION_STATE_TOPIC]
        old = topic.partitions[index]
        new = topic.partitions[index] = PartitionRegistration(leader, old.leader_epoch + 1, old.replicas, old.isr)
        change = PartitionChange(TopicPartition(TRANSACTION_STATE_TOPIC, index), topic.topic_id, old, new)
        self.run(self.follow(MetadataDelta(updated=[topic], partitions=[change])))
        self.loop.settle()

    async def follow(self, delta: MetadataDelta) -> None:
        self.metadata.apply(delta)
        await self.transactions.on_delta(delta)

    # A producer's requests.

    def start(self, operation: Awaitable[T]) -> "asyncio.Task[T]":
        """An operation that may have to wait."""

        async def wait() -> T:
            return await operation

        task = self.loop.create_task(wait())
        self.loop.settle()
        return task

    def call(self, operation: Awaitable[T]) -> T | ErrorCode:
        """What an operation gives, or the code that it is refused with, without time passing."""
        task = self.start(operation)
        assert task.done(), "it is not answered"
        error = task.exception()
        if isinstance(error, KafkaError):
            return error.code
        return task.result()

    def init(self, id: str = "t", timeout_ms: int = TIMEOUT_MS, producer: tuple[int, int] = (-1, -1)) -> Any:
        return self.call(self.transactions.init_producer_id(id, timeout_ms, *producer))

    def add(self, producer: tuple[int, int], *partitions: TopicPartition, id: str = "t", version: int = 2) -> Any:
        return self.call(self.transactions.add_partitions(id, *producer, partitions, version))

    def end(self, producer: tuple[int, int], committed: bool = True, *, id: str = "t", version: int = 2) -> Any:
        return self.call(self.transactions.end(id, *producer, committed, version))

    def commit(self, producer: tuple[int, int], *, id: str = "t", version: int = 2) -> Any:
        return self.end(producer, True, id=id, version=version)

    def abort(self, producer: tuple[int, int], *, id: str = "t", version: int = 2) -> Any:
        return self.end(producer, False, id=id, version=version)

    def verify(self, producer: tuple[int, int], *partitions: TopicPartition, id: str = "t") -> Any:
        try:
            return self.transactions.verify(id, *producer, partitions)
        except KafkaError as error:
            return error.code

    def state(self, id: str = "t") -> str:
        return self.transactions.describe(id).state.label

    # What is written down.

    def records(self) -> list[Record]:
        found = []
        for batches in self.log.batches.values():
            for batch in batches:
                for pos, header in iter_headers(batch):
                    for record in iter_records(
                        memoryview(body_of(batch, pos, header.size)), header.count, header.base_timestamp
                    ):
                        found.append(decode_record(record.key, record.value))
        return [record for record in found if record is not None]

    def states(self) -> list[str]:
        """The states of the log's records, in order; "-" for a tombstone."""
        return [record.state.label if hasattr(record, "state") else "-" for record in self.records()]


def opened(h: Harness, *partitions: object, version: int = 2) -> tuple[int, int]:
    """A producer with an open transaction in a-0, or in the partitions given."""
    producer = h.init()
    assert h.add(producer, *(partitions or (A0,)), version=version) is None
    return producer


def at_epoch(h: Harness, epoch: int, state: TransactionState = TransactionState.EMPTY, **changes: object) -> None:
    """Set what is committed of "t", as if many transactions had been before."""
    entry = h.transactions._owned.active("t").entries["t"]
    entry.transaction = entry.transaction._replace(producer_epoch=epoch, state=state, **changes)  # type: ignore[arg-type]
