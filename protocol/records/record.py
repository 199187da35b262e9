"""The records of a batch of format v2: a length, then fields as zigzag varints relative to the batch.

    length | attributes 1 | timestamp delta | offset delta | key length, key | value length, value |
    header count | (header key length, header key | header value length, header value) ...

This code is slow; ordinary Produce and Fetch requests do not use it. Lengths and counts are checked against the
available bytes before memory is allocated.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from protocol.errors import MalformedError

if TYPE_CHECKING:
    from mmap import mmap

    Records = bytes | bytearray | memoryview | mmap

Header = tuple[bytes, bytes | None]
Headers = Sequence[Header]

# A byte each for length, attributes, two deltas, key length, value length and header count.
MIN_RECORD_BYTES = 7
# Per record. A header of two bytes takes a hundred bytes in memory, and a small batch may decompress to a large record.
MAX_HEADERS = 100_000
# The length -1.
_NULL = b"\1"


class Record(NamedTuple):
    """`timestamp` is absolute, in milliseconds; `offset_delta` is relative to the base offset of the batch."""

    attributes: int
    offset_delta: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...] = ()


# Faster than Record(...), which adds a Python frame.
_make = partial(tuple.__new__, Record)


def encode_varint(value: int) -> bytes:
    """Encode a signed integer of at most 64 bits as a zigzag varint."""
    value = value << 1 if value >= 0 else (~value << 1) | 1
    return _SMALL[value] if value < len(_SMALL) else _encode_unsigned(value)


def _encode_unsigned(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


# Those of lengths up to 255.
_SMALL = tuple(_encode_unsigned(value) for value in range(512))


def decode_varint(buf: "Records", pos: int, max_bytes: int = 5) -> tuple[int, int]:
    """Decode a zigzag varint (32 bits in at most 5 bytes, 64 bits in 10); returns (value, next position).

    Raises IndexError at the end of `buf`, MalformedError if it is longer than `max_bytes`.
    """
    value = buf[pos]
    pos += 1
    if value >= 0x80:
        value &= 0x7F
        shift = 7
        limit = 7 * max_bytes
        while True:
            byte = buf[pos]
            pos += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
            if shift >= limit:
                raise MalformedError(f"varint longer than {max_bytes} bytes")
    return (value >> 1) ^ -(value & 1), pos


def encode_record(
    offset_delta: int, timestamp_delta: int, key: bytes | None, value: bytes | None, headers: Headers = ()
) -> bytes:
    """Encode one record, preceded by its length."""
    parts = [b"\0", encode_varint(timestamp_delta), encode_varint(offset_delta)]
    if key is None:
        parts.append(_NULL)
    else:
        parts += (encode_varint(len(key)), key)
    if value is None:
        parts.append(_NULL)
    else:
        parts += (encode_varint(len(value)), value)
    parts.append(encode_varint(len(headers)))
    for name, content in headers:
        parts += (encode_varint(len(name)), name, _NULL if content is None else encode_varint(len(content)) + content)
    record = b"".join(parts)
    return encode_varint(len(record)) + record


def iter_records(body: bytes | bytearray | memoryview, count: int, base_timestamp: int) -> Iterator[Record]:
    """Iterate over the records of an uncompressed body, which must be exactly `count`. Raises MalformedError.

    The order of their offsets is not checked.
    """
    buf = body if isinstance(body, bytes) else bytes(body)
    end = len(buf)
    if not 0 <= count <= end // MIN_RECORD_BYTES:
        raise MalformedError(f"{count} records in {end} bytes")
    pos = 0
    try:
        for _ in range(count):
            # Varints of one and two bytes are decoded here: a call for each takes longer than all else.
            size, start = buf[pos], pos + 1
            if size & 0x81 == 0x80 and buf[start] < 0x80:
                size, start = size - 0x80 >> 1 | buf[start] << 6, pos + 2
            elif size & 0x81:
                size, start = decode_varint(buf, pos)
            else:
                size >>= 1
            pos = start + size
            if size < MIN_RECORD_BYTES - 1 or pos > end:
                raise MalformedError(f"record of {size} bytes in {end - start} bytes")
            yield _decode_record(buf, start, pos, base_timestamp)
    except IndexError:
        raise MalformedError("a record is cut off") from None
    if pos != end:
        raise MalformedError(f"{end - pos} bytes remain after {count} records")


def decode_record_at(buf: bytes, pos: int, base_timestamp: int) -> tuple[Record, int]:
    """Decode the record at `pos`. Returns (record, position after it). Raises MalformedError."""
    try:
        size, start = decode_varint(buf, pos)
        end = start + size
        if size < MIN_RECORD_BYTES - 1 or end > len(buf):
            raise MalformedError(f"record of {size} bytes in {len(buf) - start} bytes")
        return _decode_record(buf, start, end, base_timestamp), end
    except IndexError:
        raise MalformedError("a record is cut off") from None


def skip_records(buf: "Records", pos: int, count: int) -> int:
    """Return the position after `count` records. Raises MalformedError."""
    try:
        for _ in range(count):
            size = buf[pos]
            if size < 0x80:
                pos += 1 + (size >> 1)
            elif (high := buf[pos + 1]) < 0x80:
                # The varint of two bytes has a length of (size - 128) / 2 + 64 * high.
                pos += (size >> 1) + (high << 6) - 62
            else:
                size, pos = decode_varint(buf, pos)
                pos += size
    except IndexError:
        raise MalformedError("a record is cut off") from None
    return pos


def last_offset_delta(buf: "Records", count: int) -> int:
    """Return the offset delta of the last of `count` encoded records; -1 if there are none.

    Raises IndexError or MalformedError if they are cut off.
    """
    if not count:
        return -1
    _, start = decode_varint(buf, skip_records(buf, 0, count - 1))
    _, start = decode_varint(buf, start + 1, 10)
    return decode_varint(buf, start)[0]


def _decode_record(buf: bytes, pos: int, end: int, base_timestamp: int) -> Record:
    """Decode the record in `buf[pos:end]`, without its length."""
    # As in iter_records: most numbers have one byte or two. Positive ones are even.
    attributes, delta, pos = buf[pos], buf[pos + 1], pos + 2
    if delta & 0x81:
        delta, pos = decode_varint(buf, pos - 1, 10)
        timestamp = base_timestamp + delta
    else:
        timestamp = base_timestamp + (delta >> 1)
    offset_delta, pos = buf[pos], pos + 1
    if offset_delta & 0x81 == 0x80 and buf[pos] < 0x80:
        offset_delta, pos = offset_delta - 0x80 >> 1 | buf[pos] << 6, pos + 1
    elif offset_delta & 0x81:
        offset_delta, pos = decode_varint(buf, pos - 1)
    else:
        offset_delta >>= 1
    key = None
    if buf[pos] == 1:
        pos += 1
    else:
        size, pos = decode_varint(buf, pos)
        if size >= 0:
            key = buf[pos : pos + size]
            pos += size
    size, pos = buf[pos], pos + 1
    if size & 0x81 == 0x80 and buf[pos] < 0x80:
        size, pos = size - 0x80 >> 1 | buf[pos] << 6, pos + 1
    elif size & 0x81:
        size, pos = decode_varint(buf, pos - 1)
    else:
        size >>= 1
    value = None
    if size >= 0:
        value = buf[pos : pos + size]
        pos += size
    headers: tuple[Header, ...] = ()
    # Most records end with a header count of 0.
    if pos != end - 1 or buf[pos] != 0:
        headers, pos = decode_headers(buf, pos, end)
        if pos != end:
            raise MalformedError(f"record ends {end - pos} bytes before its length says")
    return _make((attributes, offset_delta, timestamp, key, value, headers))


def decode_headers(buf: "Records", pos: int, end: int) -> tuple[tuple[Header, ...], int]:
    """Decode the headers of the record that ends at `end`. Returns (headers, position after them)."""
    count, pos = decode_varint(buf, pos)
    if not 0 <= count <= min((end - pos) // 2, MAX_HEADERS):
        raise MalformedError(f"{count} record headers in {end - pos} bytes")
    headers: list[Header] = []
    for _ in range(count):
        size, pos = decode_varint(buf, pos)
        if size < 0 or pos + size > end:
            raise MalformedError(f"record header key of {size} bytes")
        name = bytes(buf[pos : pos + size])
        size, pos = decode_varint(buf, pos + size)
        content = None
        if size >= 0:
            content = bytes(buf[pos : pos + size])
            pos += size
        if pos > end:
            raise MalformedError(f"record header of {size} bytes")
        headers.append((name, content))
    return tuple(headers), pos
