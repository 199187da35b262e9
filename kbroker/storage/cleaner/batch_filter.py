"""Compaction of records: the map from each key to its latest offset, and batches without the records that are replaced.

The offsets of the remaining records do not change.

The inner loops parse encoded records as fast as the interpreter allows. They read a record's key and offset; if it has
a key, whether it has a value; and if it is retained, its timestamp. Only keys are copied: retained records are returned
as slices of the body. Most varints have one or two bytes and are decoded inline, since a function call would cost as
much as the rest of the record.

    length | attributes 1 | timestamp delta | offset delta | key length, key | value length, value | headers
"""

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

from protocol.errors import MalformedError
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
from protocol.records.record import encode_varint

# A key, or the digest of a long key as an integer, which never equals a key.
Key = bytes | int
# The latest offset of each key.
OffsetMap = dict[Key, int]

# For longer keys the map has a digest, so that the memory of an entry is bounded.
MAX_KEY_BYTES = 31
# The same number as a zigzag varint.
_MAX_KEY_ZIGZAG = 2 * MAX_KEY_BYTES
_DIGEST_BYTES = 16
_MAX_VARINT_BYTES = 10
# The fewest bytes after a key: the value's length and the number of headers.
_BYTES_AFTER_KEY = 2
_BEFORE_ANY_TIMESTAMP = -(1 << 63)


class RetainedRecords(NamedTuple):
    """The `kept` records of a body, as `slices` (start, end) of it.

    `has_tombstones`: at least one of them is a tombstone. `max_timestamp`: their largest timestamp, relative to the
    base timestamp.
    """

    slices: list[tuple[int, int]]
    kept: int
    has_tombstones: bool
    max_timestamp: int


def add_keys(body: bytes, count: int, base_offset: int, last_offset_delta: int, offsets: OffsetMap) -> None:
    """Set the offset of each key in the body of a batch.

    Raises MalformedError if the body is not exactly `count` records, or an offset is beyond `last_offset_delta`.
    """
    pos = 0
    limit = 2 * last_offset_delta
    try:
        for _ in range(count):
            size = body[pos]
            pos += 1
            if size > 127:
                more = body[pos]
                pos += 1
                if more > 127:
                    size, pos = _read_long_varint(body, pos - 2)
                else:
                    size += (more << 7) - 128
            following = pos + (size >> 1)
            at = pos + 2
            while body[at - 1] > 127:
                at += 1
            delta = body[at]
            at += 1
            if delta > 127:
                more = body[at]
                at += 1
                if more > 127:
                    delta, at = _read_long_varint(body, at - 2)
                else:
                    delta += (more << 7) - 128
            length = body[at]
            at += 1
            if length > 127:
                length, at = _read_long_varint(body, at - 1)
            # An odd zigzag number is negative: there is no key.
            if not length & 1:
                start = at
                at += length >> 1
                key = body[start:at]
                if length > _MAX_KEY_ZIGZAG:
                    offsets[digest(key)] = base_offset + (delta >> 1)
                else:
                    offsets[key] = base_offset + (delta >> 1)
            if at + _BYTES_AFTER_KEY > following or delta > limit or delta & 1:
                raise MalformedError(f"the record before position {following} is not well-formed")
            pos = following
    except IndexError:
        raise MalformedError("a record is cut off") from None
    if pos != len(body):
        raise MalformedError(f"{len(body) - pos} bytes remain after {count} records")


def select_retained(
    body: bytes, count: int, base_offset: int, offsets: OffsetMap, drop_tombstones: bool
) -> RetainedRecords:
    """Select the records to keep: those with a key that has no later offset in the map.

    With `drop_tombstones` records without a value are not kept.

    Raises MalformedError.
    """
    slices = []
    slice_start = -1
    pos = kept = 0
    has_tombstones = False
    max_timestamp = _BEFORE_ANY_TIMESTAMP
    latest = offsets.get
    try:
        for _ in range(count):
            record = pos
            size = body[pos]
            pos += 1
            if size > 127:
                more = body[pos]
                pos += 1
                if more > 127:
                    size, pos = _read_long_varint(body, pos - 2)
                else:
                    size += (more << 7) - 128
            following = pos + (size >> 1)
            time = body[pos + 1]
            at = pos + 2
            if time > 127:
                more = body[at]
                at += 1
                if more > 127:
                    time, at = _read_long_varint(body, at - 2)
                else:
                    time += (more << 7) - 128
            delta = body[at]
            at += 1
            if delta > 127:
                more = body[at]
                at += 1
                if more > 127:
                    delta, at = _read_long_varint(body, at - 2)
                else:
                    delta += (more << 7) - 128
            length = body[at]
            at += 1
            if length > 127:
                length, at = _read_long_varint(body, at - 1)
            is_kept = False
            # An odd zigzag number is negative: there is no key, or no value.
            if not length & 1:
                start = at
                at += length >> 1
                key = body[start:at]
                offset = base_offset + (delta >> 1)
                if latest(digest(key) if length > _MAX_KEY_ZIGZAG else key, offset) <= offset:
                    if not body[at] & 1:
                        is_kept = True
                    elif not drop_tombstones:
                        is_kept = has_tombstones = True
            if at + _BYTES_AFTER_KEY > following or delta & 1:
                raise MalformedError(f"the record at position {record} is not well-formed")
            pos = following
            if is_kept:
                kept += 1
                timestamp = -(time >> 1) - 1 if time & 1 else time >> 1
                if timestamp > max_timestamp:
                    max_timestamp = timestamp
                if slice_start < 0:
                    slice_start = record
            elif slice_start >= 0:
                slices.append((slice_start, record))
                slice_start = -1
    except IndexError:
        raise MalformedError("a record is cut off") from None
    if pos != len(body):
        raise MalformedError(f"{len(body) - pos} bytes remain after {count} records")
    if slice_start >= 0:
        slices.append((slice_start, pos))
    return RetainedRecords(slices, kept, has_tombstones, max_timestamp)


def rebase_timestamps(body: bytes, slices: list[tuple[int, int]], shift_ms: int) -> bytes:
    """Encode the records in these slices for a base timestamp that is `shift_ms` earlier."""
    parts = []
    for pos, end in slices:
        while pos < end:
            size, pos = _read_long_varint(body, pos)
            following = pos + (size >> 1)
            time, at = _read_long_varint(body, pos + 1)
            timestamp = ((time >> 1) ^ -(time & 1)) + shift_ms
            encoded = encode_varint(timestamp)
            parts.append(encode_varint(1 + len(encoded) + following - at))
            parts.append(body[pos : pos + 1])
            parts.append(encoded)
            parts.append(body[at:following])
            pos = following
    return b"".join(parts)


def digest(key: bytes) -> int:
    """Return the digest that represents a key longer than MAX_KEY_BYTES."""
    return int.from_bytes(_blake2b()(key, digest_size=_DIGEST_BYTES).digest(), "big")


@cache
def _blake2b() -> Callable[..., Any]:
    # Loaded at first use, since it loads OpenSSL, which a compaction without long keys does not need.
    from hashlib import blake2b

    return blake2b


def _read_long_varint(body: bytes, pos: int) -> tuple[int, int]:
    """Read a varint of any length. Returns it in zigzag encoding, and the position after it."""
    value = shift = 0
    while True:
        byte = body[pos]
        pos += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, pos
        shift += 7
        if shift >= 7 * _MAX_VARINT_BYTES:
            raise MalformedError(f"a varint is longer than {_MAX_VARINT_BYTES} bytes")


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
