"""A write of a coordinator: one operation, and the response that waits until its records are committed.

Writes outside of transactions share record batches up to the size limit. A batch has one producer, so the writes of a
transaction have separate batches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from kbroker.common import KafkaError
from kbroker.coordinator.runtime.operation import (
    NO_PRODUCER,
    CoordinatorResult,
    LockMode,
    RecordProducer,
    Respond,
    ignore,
)
from protocol.errors import ErrorCode
from protocol.records.batch import TRANSACTIONAL, NewRecord, build_batch

if TYPE_CHECKING:
    from asyncio import Future

T = TypeVar("T")
# A key and a value.
EncodedRecord = tuple[bytes, bytes | None]

# Upper bounds in bytes: a record without its key and value; a batch header.
RECORD_OVERHEAD = 32
BATCH_OVERHEAD = 128

NO_RESULT: CoordinatorResult[None] = CoordinatorResult(None)


class WriteEvent:
    """One operation, from its scheduling until its records are committed.

    `respond` is replaced by `ignore` when it has been called. `has_deadline`: whether the timeout is running.
    """

    __slots__ = ("encoded", "has_deadline", "key", "mode", "operation", "producer", "respond", "result", "timeout_ms")

    def __init__(
        self,
        operation: Callable[[Any], CoordinatorResult[Any]],
        respond: Respond[Any],
        key: str,
        mode: LockMode,
        timeout_ms: int | None,
        producer: RecordProducer,
    ) -> None:
        self.operation = operation
        self.respond = respond
        self.key = key
        self.mode = mode
        self.timeout_ms = timeout_ms
        self.producer = producer
        self.has_deadline = False
        self.result: CoordinatorResult[Any] = NO_RESULT
        self.encoded: Sequence[EncodedRecord] = ()

    def complete(self, response: Any, error: KafkaError | None = None) -> None:
        """Respond, unless the request has timed out."""
        respond, self.respond = self.respond, ignore
        respond(response, error)


def complete(future: Future[T], response: T) -> None:
    """Set the response, unless the future is done because the broker is stopping."""
    if not future.done():
        future.set_result(response)


def complete_or_fail(future: Future[T], response: T, error: KafkaError | None) -> None:
    """Set the response, or the error if there is one, as `complete` does."""
    if error is None:
        complete(future, response)
    elif not future.done():
        future.set_exception(error)


def time_out(event: WriteEvent) -> None:
    """Respond to a write that is not committed in time."""
    event.complete(None, KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE))


def split_into_batches(writes: Sequence[WriteEvent], max_bytes: int) -> Iterator[list[WriteEvent]]:
    """Yield the writes of each batch, in order. A write that is too large has its own batch."""
    batch: list[WriteEvent] = []
    batch_bytes = BATCH_OVERHEAD
    for write in writes:
        write_bytes = _max_bytes(write)
        if batch and (batch_bytes + write_bytes > max_bytes or write.producer != batch[-1].producer):
            yield batch
            batch, batch_bytes = [], BATCH_OVERHEAD
        batch.append(write)
        batch_bytes += write_bytes
    if batch:
        yield batch


def _max_bytes(write: WriteEvent) -> int:
    size = 0
    for key, value in write.encoded:
        size += RECORD_OVERHEAD + len(key) + len(value or b"")
    return size


def encode_batch(writes: Sequence[WriteEvent], codec: int, now_ms: int) -> bytearray:
    """Return the batch of writes that have the same producer. `now_ms`: the timestamp of its records.

    Coordinators do not count sequences: as in Kafka every transactional batch has base sequence 0, because Kafka's log
    cleaner rejects a lower one.
    """
    producer = writes[0].producer
    records: list[NewRecord] = [(now_ms, key, value, ()) for write in writes for key, value in write.encoded]
    if producer is NO_PRODUCER:
        return build_batch(records, codec=codec)
    return build_batch(
        records,
        codec=codec,
        attributes=TRANSACTIONAL,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        base_sequence=0,
    )
