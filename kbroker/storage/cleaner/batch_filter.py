"""Leaving records out of a batch, as compaction does, without changing the offsets of the others."""

from collections.abc import Iterator

from kbroker.common import Buffer
from kbroker.storage.cleaner.offset_map import OffsetMap, RetainedRecords, rebase_timestamps, select_retained
from protocol.records.batch import (
    CODEC_MASK,
    DELETE_HORIZON,
    HEADER_SIZE,
    LOG_APPEND_TIME,
    BatchHeader,
    assemble_batch,
    body_of,
)
from protocol.records.compression import compress, decompress
from protocol.records.record import Record, iter_records

# A batch may decompress to this much; only one is held, at a time.
MAX_DECOMPRESSED = 256 << 20


def records_of(batch: Buffer, header: BatchHeader) -> Iterator[Record]:
    """The records of a whole batch; raises MalformedError."""
    body = decompress(header.codec, body_of(batch, 0, header.size), MAX_DECOMPRESSED)
    return iter_records(body, header.count, header.base_timestamp)


def encoded_records(batch: bytes, header: BatchHeader) -> bytes:
    """The records of a whole batch as bytes, decompressed; raises MalformedError."""
    if header.attributes & CODEC_MASK:
        return bytes(decompress(header.codec, memoryview(batch)[HEADER_SIZE:], MAX_DECOMPRESSED))
    return batch[HEADER_SIZE:]


def filter_batch(
    batch: bytes, header: BatchHeader, offsets: OffsetMap, *, now_ms: int, delete_retention_ms: int, keep_empty: bool
) -> bytes | bytearray | None:
    """The batch with only the latest record of each key in `offsets`; None if nothing remains of it.

    Base and last offset stay. If tombstones remain, the batch is marked with the time from which they may go, unless
    it has such a mark; KIP-534 puts it in the place of the base timestamp. With `keep_empty` a batch without records
    remains of one that loses all. Raises MalformedError.
    """
    marked = header.attributes & DELETE_HORIZON
    body = encoded_records(batch, header)
    sifted = select_retained(
        body, header.count, header.base_offset, offsets, bool(marked) and header.base_timestamp <= now_ms
    )
    if not sifted.kept:
        return emptied(batch, header) if keep_empty else None
    if sifted.tombstones and not marked:
        horizon_ms = now_ms + delete_retention_ms
        kept = rebase_timestamps(body, sifted.runs, header.base_timestamp - horizon_ms)
        return _rebuilt(header, sifted, kept, header.attributes | DELETE_HORIZON, horizon_ms)
    if sifted.kept == header.count:
        return batch
    kept = b"".join([body[start:end] for start, end in sifted.runs])
    return _rebuilt(header, sifted, kept, header.attributes, header.base_timestamp)


def filter_marker(
    batch: bytes, header: BatchHeader, *, now_ms: int, delete_retention_ms: int, keep_empty: bool
) -> bytes | bytearray | None:
    """A control batch that has nothing left to mark: it is marked with the time from which it may go, and then goes, as
    a tombstone. With `keep_empty` it remains without its record. Raises MalformedError."""
    if not header.count:
        return batch if keep_empty else None
    if not header.attributes & DELETE_HORIZON:
        horizon_ms = now_ms + delete_retention_ms
        body = encoded_records(batch, header)
        runs = [(0, len(body))]
        sifted = RetainedRecords(runs, header.count, True, header.max_timestamp - header.base_timestamp)
        kept = rebase_timestamps(body, runs, header.base_timestamp - horizon_ms)
        return _rebuilt(header, sifted, kept, header.attributes | DELETE_HORIZON, horizon_ms)
    if header.base_timestamp > now_ms:
        return batch
    return emptied(batch, header) if keep_empty else None


def emptied(batch: bytes, header: BatchHeader) -> bytes | bytearray:
    """What a batch leaves behind that loses all of its records: its offsets, and its producer's last sequence.

    As in Kafka its time is that of the batch as it was, so that retention by time takes it when it would have."""
    return batch if not header.count else _emptied(header)


def _rebuilt(
    header: BatchHeader, sifted: RetainedRecords, kept: bytes, attributes: int, base_timestamp: int
) -> bytearray:
    appended = attributes & LOG_APPEND_TIME
    return assemble_batch(
        compress(attributes & CODEC_MASK, kept),
        count=sifted.kept,
        last_offset_delta=header.last_offset_delta,
        base_timestamp=base_timestamp,
        max_timestamp=header.max_timestamp if appended else header.base_timestamp + sifted.newest,
        attributes=attributes,
        base_offset=header.base_offset,
        leader_epoch=header.leader_epoch,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
    )


def _emptied(header: BatchHeader) -> bytearray:
    return assemble_batch(
        b"",
        count=0,
        last_offset_delta=header.last_offset_delta,
        base_timestamp=-1,
        max_timestamp=header.max_timestamp,
        attributes=header.attributes & ~(CODEC_MASK | DELETE_HORIZON),
        base_offset=header.base_offset,
        leader_epoch=header.leader_epoch,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
    )
