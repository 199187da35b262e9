"""A write of a coordinator: one operation, and the response that waits until its records are committed.

Writes outside of transactions share record batches up to the size limit. A batch has one producer, so the writes of a
transaction have separate batches. A large write has several batches, one in each iteration of the event loop, unless it
commits offsets.
"""

from asyncio import Future
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeVar

from kbroker.common import KafkaError
from kbroker.coordinator.runtime.operation import (
    NO_PRODUCER,
    SHARED,
    CoordinatorResult,
    LockMode,
    RecordProducer,
    Respond,
    ignore,
)
from protocol.errors import ErrorCode
from protocol.records.batch import TRANSACTIONAL, NewRecord, build_batch

T = TypeVar("T")
# A key and a value.
EncodedRecord = tuple[bytes, bytes | None]

# Upper bounds in bytes: a record without its key and value; a batch header.
RECORD_OVERHEAD = 32
BATCH_OVERHEAD = 128
# The number of records of one write in a batch, which take 1 or 2 ms.
RECORDS_PER_BATCH = 1000

NO_RESULT: CoordinatorResult[None] = CoordinatorResult(None)


@dataclass(slots=True, eq=False)
class WriteEvent:
    """One operation, from its scheduling until its records are committed.

    `respond` is replaced by `ignore` when it has been called. `error`: what the operation has raised. `has_deadline`:
    whether the timeout is running. `appended`: the number of records that are appended, of a large write. `reads`:
    operations without records that respond after this one, because they may have seen what it has replayed.
    """

    operation: Callable[[Any], CoordinatorResult[Any]]
    respond: Respond[Any]
    key: str
    mode: LockMode
    timeout_ms: int | None
    producer: RecordProducer
    has_deadline: bool = False
    result: CoordinatorResult[Any] = NO_RESULT
    error: KafkaError | None = None
    encoded: Sequence[EncodedRecord] = ()
    appended: int = 0
    reads: "list[WriteEvent] | None" = None


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
    respond, event.respond = event.respond, ignore
    respond(None, KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE))


def split_into_batches(writes: Sequence[WriteEvent], max_bytes: int) -> Iterator[list[WriteEvent]]:
    """Yield the writes of each batch, in order. A large write has batches of its own."""
    batch: list[WriteEvent] = []
    batch_bytes = BATCH_OVERHEAD
    for write in writes:
        # A large write shares a batch with no other.
        write_bytes = max_bytes if len(write.encoded) > RECORDS_PER_BATCH else _max_bytes(write)
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


def fits_into_batches(records: Iterable[EncodedRecord], max_bytes: int) -> bool:
    """Return whether each record fits into a batch."""
    limit = max_bytes - BATCH_OVERHEAD - RECORD_OVERHEAD
    return all(len(key) + len(value or b"") <= limit for key, value in records)


def next_records(writes: Sequence[WriteEvent], max_bytes: int) -> Sequence[EncodedRecord]:
    """Return the records of writes that `split_into_batches` has put together; of a large write, only the next ones."""
    write = writes[0]
    if len(writes) > 1 or write.mode is SHARED or write.producer is not NO_PRODUCER:
        return [record for write in writes for record in write.encoded]
    begin = end = write.appended
    size = BATCH_OVERHEAD
    for key, value in islice(write.encoded, begin, begin + RECORDS_PER_BATCH):
        size += RECORD_OVERHEAD + len(key) + len(value or b"")
        if size > max_bytes and end > begin:
            break
        end += 1
    return write.encoded[begin:end]


def encode_batch(records: Iterable[EncodedRecord], producer: RecordProducer, codec: int, now_ms: int) -> bytearray:
    """Return a batch of records with the timestamp `now_ms`.

    Coordinators do not count sequences: as in Kafka every transactional batch has base sequence 0, because Kafka's log
    cleaner rejects a lower one.
    """
    new_records: list[NewRecord] = [(now_ms, key, value, ()) for key, value in records]
    if producer is NO_PRODUCER:
        return build_batch(new_records, codec=codec)
    return build_batch(
        new_records,
        codec=codec,
        attributes=TRANSACTIONAL,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        base_sequence=0,
    )
