"""Single records inside a batch of format v2: a length, then fields as zigzag varints relative to the batch.

    length | attributes 1 | timestamp delta | offset delta | key length, key | value length, value |
    header count | (header key length, header key | header value length, header value) ...

All of this is the slow way: ordinary produce and fetch never come here. Lengths and counts are checked
against the bytes that are there before anything is taken.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from protocol.errors import MalformedError

Header = tuple[bytes, bytes | None]
Headers = Sequence[Header]

# Length, attributes, two deltas, key length, value length and header count take a byte each.
SMALLEST_RECORD = 7
# A header of two bytes takes a hundred in memory, and a record may be what a small batch decompresses to.
MAX_HEADERS = 100_000


class Record(NamedTuple):
    """One record. `timestamp` is absolute, in ms; `offset_delta` is relative to the batch's base offset."""

    attributes: int
    offset_delta: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...] = ()


def put_varint(value: int) -> bytes:
    """Encode a signed integer of at most 64 bits as a zigzag varint."""
    value = value << 1 if value >= 0 else (~value << 1) | 1
    if value < 0x80:
        return _SMALL[value]
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


_SMALL = tuple(bytes((value,)) for value in range(0x80))


def take_varint(buf: bytes | bytearray | memoryview, pos: int, max_bytes: int = 5) -> tuple[int, int]:
    """Read a zigzag varint (32 bits in 5 bytes, 64 bits in 10); gives (value, next position).

    Raises IndexError past the end of `buf` and MalformedError when it is longer than `max_bytes`.
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
    """Encode one record with its length in front."""
    parts = [b"\0", put_varint(timestamp_delta), put_varint(offset_delta), _sized(key), _sized(value)]
    parts.append(put_varint(len(headers)))
    for name, content in headers:
        parts.append(_sized(name))
        parts.append(_sized(content))
    record = b"".join(parts)
    return put_varint(len(record)) + record


def _sized(content: bytes | None) -> bytes:
    if content is None:
        return b"\x01"
    return put_varint(len(content)) + content


def iter_records(body: bytes | bytearray | memoryview, count: int, base_timestamp: int) -> Iterator[Record]:
    """Give the `count` records of an uncompressed body, which must hold them exactly; raises MalformedError.

    Offsets are not checked to be in order: compaction leaves gaps.
    """
    buf = body if isinstance(body, bytes) else bytes(body)
    end = len(buf)
    if not 0 <= count <= end // SMALLEST_RECORD:
        raise MalformedError(f"{count} records in {end} bytes")
    pos = 0
    try:
        for _ in range(count):
            size, start = take_varint(buf, pos)
            pos = start + size
            if size < SMALLEST_RECORD - 1 or pos > end:
                raise MalformedError(f"record of {size} bytes in {end - start} bytes")
            yield _take_record(buf, start, pos, base_timestamp)
    except IndexError:
        raise MalformedError("a record is cut off") from None
    if pos != end:
        raise MalformedError(f"{end - pos} bytes remain after {count} records")


def _take_record(buf: bytes, pos: int, end: int, base_timestamp: int) -> Record:
    """Read the record that is `buf[pos:end]`, its length excluded."""
    attributes = buf[pos]
    timestamp_delta, pos = take_varint(buf, pos + 1, 10)
    offset_delta, pos = take_varint(buf, pos)
    size, pos = take_varint(buf, pos)
    key = None
    if size >= 0:
        key = buf[pos : pos + size]
        pos += size
    size, pos = take_varint(buf, pos)
    value = None
    if size >= 0:
        value = buf[pos : pos + size]
        pos += size
    headers: tuple[Header, ...] = ()
    # A count of headers is the last byte of most records.
    if pos != end - 1 or buf[pos] != 0:
        headers, pos = _take_headers(buf, pos, end)
        if pos != end:
            raise MalformedError(f"record ends {end - pos} bytes before its length says")
    return Record(attributes, offset_delta, base_timestamp + timestamp_delta, key, value, headers)


def _take_headers(buf: bytes, pos: int, end: int) -> tuple[tuple[Header, ...], int]:
    count, pos = take_varint(buf, pos)
    if not 0 <= count <= min((end - pos) // 2, MAX_HEADERS):
        raise MalformedError(f"{count} record headers in {end - pos} bytes")
    headers: list[Header] = []
    for _ in range(count):
        size, pos = take_varint(buf, pos)
        if size < 0 or pos + size > end:
            raise MalformedError(f"record header key of {size} bytes")
        name = buf[pos : pos + size]
        size, pos = take_varint(buf, pos + size)
        content = None
        if size >= 0:
            content = buf[pos : pos + size]
            pos += size
        if pos > end:
            raise MalformedError(f"record header of {size} bytes")
        headers.append((name, content))
    return tuple(headers), pos
