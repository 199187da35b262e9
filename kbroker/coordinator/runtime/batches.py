"""Groups the writes of a coordinator into record batches, and encodes these.

Writes outside of transactions share batches up to the size limit. A batch has one producer, so the writes of a
transaction have separate batches.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol, TypeVar

from kbroker.coordinator.runtime.operation import NO_PRODUCER, RecordProducer
from protocol.records.batch import TRANSACTIONAL, NewRecord, build_batch

# Upper bounds in bytes: a record without its key and value; a batch header.
RECORD_OVERHEAD = 32
BATCH_OVERHEAD = 128


class EncodedWrite(Protocol):
    """Records that are appended together."""

    @property
    def encoded(self) -> Sequence[EncodedRecord]: ...
    @property
    def producer(self) -> RecordProducer: ...


# A key and a value.
EncodedRecord = tuple[bytes, bytes | None]
W = TypeVar("W", bound=EncodedWrite)


def split_into_batches(writes: Sequence[W], max_bytes: int) -> Iterator[list[W]]:
    """Yield the writes of each batch, in order. A write that is too large has its own batch."""
    batch: list[W] = []
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


def _max_bytes(write: EncodedWrite) -> int:
    size = 0
    for key, value in write.encoded:
        size += RECORD_OVERHEAD + len(key) + len(value or b"")
    return size


def encode_batch(writes: Sequence[EncodedWrite], codec: int, now_ms: int) -> bytearray:
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
