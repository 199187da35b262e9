"""Leaving records out of a batch, as compaction does, without changing the offsets of the others."""

from collections.abc import Callable, Iterator

from kbroker.model import Buffer
from kbroker.storage.indexes import NO_TIMESTAMP
from protocol.records.batch import CODEC_MASK, DELETE_HORIZON, LOG_APPEND_TIME, BatchHeader, assemble_batch, body_of
from protocol.records.compression import compress, decompress
from protocol.records.record import Record, encode_record, iter_records

# A batch may decompress to this much; only one is held, at a time.
MAX_DECOMPRESSED = 256 << 20


def records_of(batch: Buffer, header: BatchHeader) -> Iterator[Record]:
    """The records of a whole batch; raises MalformedError."""
    body = decompress(header.codec, body_of(batch, 0, header.size), MAX_DECOMPRESSED)
    return iter_records(body, header.count, header.base_timestamp)


def filter_batch(
    batch: bytes,
    header: BatchHeader,
    keep: Callable[[int, Record], bool],
    *,
    delete_horizon_ms: int,
    keep_empty: bool,
) -> bytes | bytearray | None:
    """The batch with only those records for which `keep(offset, record)` holds; None if nothing remains of it.

    Base and last offset stay. If tombstones remain, the batch is marked with the time from which they may go, unless
    it has such a mark: `delete_horizon_ms` (KIP-534 puts it in the place of the base timestamp). With `keep_empty` a
    batch without records remains of one that loses all: it has the last sequence of a producer.
    """
    kept = []
    tombstones = False
    for record in records_of(batch, header):
        if keep(header.base_offset + record.offset_delta, record):
            kept.append(record)
            tombstones = tombstones or record.value is None
    if not kept and not keep_empty:
        return None
    marks = tombstones and not header.attributes & DELETE_HORIZON
    if len(kept) == header.count and not marks:
        return batch
    attributes = header.attributes
    base_timestamp = header.base_timestamp
    if marks:
        attributes |= DELETE_HORIZON
        base_timestamp = delete_horizon_ms
    max_timestamp = header.max_timestamp
    if kept and not attributes & LOG_APPEND_TIME:
        max_timestamp = max(record.timestamp for record in kept)
    elif not kept:
        attributes &= ~CODEC_MASK
        max_timestamp = NO_TIMESTAMP
    body = b"".join(
        encode_record(record.offset_delta, record.timestamp - base_timestamp, record.key, record.value, record.headers)
        for record in kept
    )
    return assemble_batch(
        compress(attributes & CODEC_MASK, body),
        count=len(kept),
        last_offset_delta=header.last_offset_delta,
        base_timestamp=base_timestamp,
        max_timestamp=max_timestamp,
        attributes=attributes,
        base_offset=header.base_offset,
        leader_epoch=header.leader_epoch,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
    )
