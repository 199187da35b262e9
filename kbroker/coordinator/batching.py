"""Which writes of a coordinator share a record batch.

What no transaction writes shares batches as long as they are not too large. A batch has one producer, so what one
transaction writes is batches of its own, and every end of a transaction is one control batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Generic, NamedTuple, TypeVar

from kbroker.state.txn.marker import Marker
from protocol.errors import ErrorCode
from protocol.records.batch import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, TRANSACTIONAL, NewRecord, build_batch
from protocol.records.control import EndMarker, build_end_marker

R = TypeVar("R")
Done = Callable[[ErrorCode], None]

# What a record costs in a batch besides key and value, at most; and the batch's header.
RECORD_OVERHEAD = 32
BATCH_OVERHEAD = 128


class Producer(NamedTuple):
    """Who writes within a transaction. `guard` is what the log gave out when it was asked for whether the transaction
    is open (KIP-890), None where that need not be known."""

    producer_id: int = NO_PRODUCER_ID
    epoch: int = NO_PRODUCER_EPOCH
    guard: object | None = None


NOBODY = Producer()


class Write(NamedTuple, Generic[R]):
    """Records to be appended together, or the end of a transaction."""

    records: Sequence[R]
    encoded: Sequence[NewRecord]
    done: Done
    producer: Producer = NOBODY
    marker: Marker | None = None

    def size(self) -> int:
        """Bytes of its records, at most."""
        return sum(len(key or b"") + len(value or b"") + RECORD_OVERHEAD for _, key, value, _ in self.encoded)


def gather(queue: Sequence[Write[R]], max_bytes: int) -> Iterator[list[Write[R]]]:
    """Each batch's writes, in order. A write that is too large has a batch of its own."""
    batch: list[Write[R]] = []
    size = BATCH_OVERHEAD
    for write in queue:
        more = write.size()
        if batch and (size + more > max_bytes or not _together(batch[-1], write)):
            yield batch
            batch, size = [], BATCH_OVERHEAD
        batch.append(write)
        size += more
    if batch:
        yield batch


def _together(one: Write[R], other: Write[R]) -> bool:
    return one.producer == other.producer and one.marker is None and other.marker is None


def build(writes: Sequence[Write[R]], codec: int, now_ms: int) -> bytearray:
    """The batch of writes that belong together."""
    marker, producer = writes[0].marker, writes[0].producer
    if marker is not None:
        end = EndMarker(marker.committed, marker.coordinator_epoch)
        return build_end_marker(end, marker.producer_id, marker.producer_epoch, now_ms)
    return build_batch(
        [record for write in writes for record in write.encoded],
        codec=codec,
        attributes=TRANSACTIONAL if producer is not NOBODY else 0,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
    )
