"""Removes records from a batch, as compaction does, without changing the offsets of the others."""

from kbroker.storage.cleaner.offset_map import OffsetMap, RetainedRecords, rebase_timestamps, select_retained
from protocol.records.batch import (
    CODEC_MASK,
    DELETE_HORIZON,
    HEADER_SIZE,
    LOG_APPEND_TIME,
    MAX_DECOMPRESSED_BYTES,
    BatchHeader,
    rebuild_batch,
)
from protocol.records.compression import compress, decompress


def encoded_records(batch: bytes, header: BatchHeader) -> bytes:
    """Return the records of a complete batch as bytes, decompressed. Raises MalformedError."""
    if header.attributes & CODEC_MASK:
        return bytes(decompress(header.codec, memoryview(batch)[HEADER_SIZE:], MAX_DECOMPRESSED_BYTES))
    return batch[HEADER_SIZE:]


def filter_batch(
    batch: bytes, header: BatchHeader, offsets: OffsetMap, *, now_ms: int, delete_retention_ms: int, keep_empty: bool
) -> bytes | bytearray | None:
    """Return the batch with only the latest record of each key in `offsets`; None if nothing remains.

    Base offset and last offset do not change. If tombstones remain, the batch gets a delete horizon, unless it has one:
    the time from which they may be dropped. KIP-534 stores it in the field of the base timestamp. With `keep_empty` a
    batch that loses all records remains without any. Raises MalformedError.
    """
    has_horizon = bool(header.attributes & DELETE_HORIZON)
    body = encoded_records(batch, header)
    drop_tombstones = has_horizon and header.base_timestamp <= now_ms
    retained = select_retained(body, header.count, header.base_offset, offsets, drop_tombstones)
    if not retained.kept:
        return without_records(batch, header) if keep_empty else None
    if retained.has_tombstones and not has_horizon:
        return _with_delete_horizon(header, body, retained, now_ms + delete_retention_ms)
    if retained.kept == header.count:
        return batch
    kept = b"".join([body[start:end] for start, end in retained.slices])
    return _rebuild(header, retained, kept, header.attributes, header.base_timestamp)


def filter_marker(
    batch: bytes, header: BatchHeader, *, now_ms: int, delete_retention_ms: int, keep_empty: bool
) -> bytes | bytearray | None:
    """Return the control batch of a transaction without remaining records; None if it is removed.

    Like a tombstone, it first gets a delete horizon, and is removed when that has passed. With `keep_empty` it remains
    without its record. Raises MalformedError.
    """
    if not header.count:
        return batch if keep_empty else None
    if not header.attributes & DELETE_HORIZON:
        body = encoded_records(batch, header)
        max_timestamp = header.max_timestamp - header.base_timestamp
        all_records = RetainedRecords([(0, len(body))], header.count, True, max_timestamp)
        return _with_delete_horizon(header, body, all_records, now_ms + delete_retention_ms)
    if header.base_timestamp > now_ms:
        return batch
    return without_records(batch, header) if keep_empty else None


def without_records(batch: bytes, header: BatchHeader) -> bytes | bytearray:
    """Return an empty batch that keeps only the offsets and the producer's last sequence.

    As in Kafka it also keeps its max timestamp, so that retention by time deletes it when it would have deleted the
    records.
    """
    if not header.count:
        return batch
    return rebuild_batch(
        header,
        b"",
        count=0,
        base_timestamp=-1,
        max_timestamp=header.max_timestamp,
        attributes=header.attributes & ~(CODEC_MASK | DELETE_HORIZON),
    )


def _with_delete_horizon(header: BatchHeader, body: bytes, retained: RetainedRecords, horizon_ms: int) -> bytearray:
    records = rebase_timestamps(body, retained.slices, header.base_timestamp - horizon_ms)
    return _rebuild(header, retained, records, header.attributes | DELETE_HORIZON, horizon_ms)


def _rebuild(
    header: BatchHeader, retained: RetainedRecords, records: bytes, attributes: int, base_timestamp: int
) -> bytearray:
    has_append_time = attributes & LOG_APPEND_TIME
    return rebuild_batch(
        header,
        compress(attributes & CODEC_MASK, records),
        count=retained.kept,
        base_timestamp=base_timestamp,
        max_timestamp=header.max_timestamp if has_append_time else header.base_timestamp + retained.max_timestamp,
        attributes=attributes,
    )
