"""Which writes of a coordinator share a record batch.

What no transaction writes shares batches as long as they are not too large. A batch has one producer, so what one
transaction writes is batches of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Generic, NamedTuple, TypeVar

from kbroker.storage.producers.verification import VerificationGuard
from protocol.errors import ErrorCode
from protocol.records.batch import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, TRANSACTIONAL, NewRecord, build_batch

R = TypeVar("R")
Done = Callable[[ErrorCode], None]

# What a record costs in a batch besides key and value, at most; and the batch's header.
RECORD_OVERHEAD = 32
BATCH_OVERHEAD = 128


class Producer(NamedTuple):
    """Who writes within a transaction. `guard` is what the log gave out before it was verified that the partition is
    part of the transaction, None where it is open already (KIP-890); unless `verify`, it is not asked for."""

    producer_id: int = NO_PRODUCER_ID
    epoch: int = NO_PRODUCER_EPOCH
    guard: VerificationGuard | None = None
    verify: bool = False


NOBODY = Producer()


class Write(NamedTuple, Generic[R]):
    """Records to be appended together."""

    records: Sequence[R]
    encoded: Sequence[NewRecord]
    done: Done
    producer: Producer = NOBODY

    def size(self) -> int:
        """Bytes of its records, at most."""
        return sum(len(key or b"") + len(value or b"") + RECORD_OVERHEAD for _, key, value, _ in self.encoded)


def gather(queue: Sequence[Write[R]], max_bytes: int) -> Iterator[list[Write[R]]]:
    """Each batch's writes, in order. A write that is too large has a batch of its own."""
    batch: list[Write[R]] = []
    size = BATCH_OVERHEAD
    for write in queue:
        more = write.size()
        if batch and (size + more > max_bytes or write.producer != batch[-1].producer):
            yield batch
            batch, size = [], BATCH_OVERHEAD
        batch.append(write)
        size += more
    if batch:
        yield batch


def build(writes: Sequence[Write[R]], codec: int) -> bytearray:
    """The batch of writes that belong together. Coordinators do not count sequences: as in Kafka each batch of a
    transaction begins at 0, below which its log cleaner takes none.
    """
    producer, records = writes[0].producer, [record for write in writes for record in write.encoded]
    if producer is NOBODY:
        return build_batch(records, codec=codec)
    return build_batch(
        records,
        codec=codec,
        attributes=TRANSACTIONAL,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        base_sequence=0,
    )
