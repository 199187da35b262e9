"""One coordinator context over a fake log, for tests of the runtime."""

import asyncio
from collections.abc import Callable
from typing import Any

from kbroker.common import KafkaError, TopicPartition
from kbroker.coordinator.runtime.coordinator_context import CoordinatorContext, RuntimeConfig
from kbroker.coordinator.runtime.operation import NO_PRODUCER, CoordinatorResult, LockMode, RecordProducer
from kbroker.storage.producers.transactions import TransactionMarker
from protocol.errors import ErrorCode
from protocol.records.batch import BatchHeader, parse_header
from tests.unit.support.internal_log import MemoryLog, VirtualLoop, virtual_environment

TP = TopicPartition("__toy", 0)


class ToyShard:
    """Its records are texts. A text that begins with ? is a record of an unknown type."""

    def __init__(self) -> None:
        self.applied: list[str] = []
        # (text, offset, producer id), and (producer id, committed) for a marker.
        self.replayed: list[tuple[Any, ...]] = []
        self.is_loaded = False
        self.unloaded_with: ErrorCode | None = None

    def encode(self, record: str) -> tuple[bytes, bytes | None]:
        return record.encode(), b"v"

    def decode(self, key: bytes | None, value: bytes | None) -> str | None:
        text = (key or b"").decode()
        return None if text.startswith("?") else text

    def replay(self, record: str, offset: int, producer_id: int) -> None:
        self.applied.append(record)
        self.replayed.append((record, offset, producer_id))

    def replay_end_transaction(self, producer_id: int, committed: bool) -> None:
        self.replayed.append((producer_id, committed))

    def on_loaded(self) -> None:
        self.is_loaded = True

    def on_unloaded(self, error: ErrorCode) -> None:
        self.unloaded_with = error


class Story:
    def __init__(self, *, max_batch_bytes: int = 1 << 20, active: bool = True) -> None:
        self.loop = VirtualLoop()
        self.log = MemoryLog()
        self.shard = ToyShard()
        self.results: list[tuple[str, ErrorCode]] = []
        self.config = RuntimeConfig(1, 1, max_batch_bytes, 5 << 20)
        self.environment = virtual_environment(self.loop)
        self.context: CoordinatorContext[ToyShard] = CoordinatorContext(
            self.environment, self.log, TP, 0, lambda: self.config
        )
        self.context.shard = self.shard
        if active:
            self.context.activate()

    def write(
        self,
        *records: str,
        key: str = "key",
        mode: LockMode = LockMode.NONE,
        timeout_ms: int | None = None,
        producer: RecordProducer = NO_PRODUCER,
        on_failed: Callable[[ErrorCode], None] = lambda error: None,
    ) -> None:
        """Write records; the result is recorded under the first one."""
        result = CoordinatorResult(None, records, on_failed=on_failed)
        future = self.context.schedule_write(lambda shard: result, key, mode, timeout_ms, producer)
        future.add_done_callback(lambda future: self.results.append((records[0], error_of(future))))

    def end(self, producer_id: int, *, committed: bool = True) -> None:
        marker = TransactionMarker(producer_id, 0, committed, 3, 1)
        self.context.complete_transaction(marker, lambda error: self.results.append((f"end of {producer_id}", error)))

    def load(self) -> None:
        self.loop.run_until_complete(self.context.load())

    def run_ready(self) -> None:
        self.loop.run_ready()

    def headers(self) -> list[BatchHeader]:
        return [parse_header(batch) for batch in self.log.batches.get(TP, [])]


def error_of(future: "asyncio.Future[Any]") -> ErrorCode:
    error = future.exception()
    if error is None:
        return ErrorCode.NONE
    assert isinstance(error, KafkaError)
    return error.code
