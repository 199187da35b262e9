"""Walking over the records of a batch, as fast as the interpreter allows: what compaction looks at, nothing more.

Of a record it needs the key and the offset, of one with a key also whether there is a value, and of those that stay
the timestamp. Nothing is copied but keys; what stays is told as slices of the body, neighbours together. Most varints
have one or two bytes, and those are read in place: a call would cost as much as all the rest.

    length | attributes 1 | timestamp delta | offset delta | key length, key | value length, value | headers
"""

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

from protocol.errors import MalformedError
from protocol.records.record import put_varint

# A key itself or, of a long one, its digest as a number, which is equal to no key.
Key = bytes | int
OffsetMap = dict[Key, int]

# Longer keys are kept as 16 bytes, so that the memory for an entry is bounded.
LONGEST_KEY = 31
_LONGEST = 2 * LONGEST_KEY
_DIGEST_BYTES = 16
# A varint of 64 bits.
_MAX_BYTES = 10
# After a key come at least the value's length and the number of headers.
_AFTER_KEY = 2
_EARLIEST = -(1 << 63)


class RetainedRecords(NamedTuple):
    """`runs`: slices (start, end) of the body that hold the `kept` records that stay. `tombstones`: whether there is
    one among them. `newest`: their largest timestamp, relative to the base timestamp."""

    runs: list[tuple[int, int]]
    kept: int
    tombstones: bool
    newest: int


def add_keys(body: bytes, count: int, base_offset: int, last_delta: int, offsets: OffsetMap) -> None:
    """Note the offset of each record that has a key. Raises MalformedError if the body is not `count` whole records
    of offsets up to `last_delta`."""
    pos = 0
    limit = 2 * last_delta
    try:
        for _ in range(count):
            size = body[pos]
            pos += 1
            if size > 127:
                more = body[pos]
                pos += 1
                if more > 127:
                    size, pos = _long(body, pos - 2)
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
                    delta, at = _long(body, at - 2)
                else:
                    delta += (more << 7) - 128
            length = body[at]
            at += 1
            if length > 127:
                length, at = _long(body, at - 1)
            if not length & 1:
                start = at
                at += length >> 1
                key = body[start:at]
                if length > _LONGEST:
                    offsets[digest(key)] = base_offset + (delta >> 1)
                else:
                    offsets[key] = base_offset + (delta >> 1)
            if at + _AFTER_KEY > following or delta > limit or delta & 1:
                raise MalformedError(f"the record before position {following} is not well-formed")
            pos = following
    except IndexError:
        raise MalformedError("a record is cut off") from None
    if pos != len(body):
        raise MalformedError(f"{len(body) - pos} bytes remain after {count} records")


def select_retained(
    body: bytes, count: int, base_offset: int, offsets: OffsetMap, tombstones_go: bool
) -> RetainedRecords:
    """Which records stay: those with a key of which no later offset is known; tombstones only unless they may go.

    Raises MalformedError.
    """
    runs = []
    run = -1
    pos = kept = 0
    tombstones = False
    newest = _EARLIEST
    known = offsets.get
    try:
        for _ in range(count):
            record = pos
            size = body[pos]
            pos += 1
            if size > 127:
                more = body[pos]
                pos += 1
                if more > 127:
                    size, pos = _long(body, pos - 2)
                else:
                    size += (more << 7) - 128
            following = pos + (size >> 1)
            time = body[pos + 1]
            at = pos + 2
            if time > 127:
                more = body[at]
                at += 1
                if more > 127:
                    time, at = _long(body, at - 2)
                else:
                    time += (more << 7) - 128
            delta = body[at]
            at += 1
            if delta > 127:
                more = body[at]
                at += 1
                if more > 127:
                    delta, at = _long(body, at - 2)
                else:
                    delta += (more << 7) - 128
            length = body[at]
            at += 1
            if length > 127:
                length, at = _long(body, at - 1)
            stays = False
            if not length & 1:
                start = at
                at += length >> 1
                key = body[start:at]
                offset = base_offset + (delta >> 1)
                if known(digest(key) if length > _LONGEST else key, offset) <= offset:
                    # An odd length is a negative one, which says that there is no value.
                    if not body[at] & 1:
                        stays = True
                    elif not tombstones_go:
                        stays = tombstones = True
            if at + _AFTER_KEY > following or delta & 1:
                raise MalformedError(f"the record at position {record} is not well-formed")
            pos = following
            if stays:
                kept += 1
                stamp = -(time >> 1) - 1 if time & 1 else time >> 1
                if stamp > newest:
                    newest = stamp
                if run < 0:
                    run = record
            elif run >= 0:
                runs.append((run, record))
                run = -1
    except IndexError:
        raise MalformedError("a record is cut off") from None
    if pos != len(body):
        raise MalformedError(f"{len(body) - pos} bytes remain after {count} records")
    if run >= 0:
        runs.append((run, pos))
    return RetainedRecords(runs, kept, tombstones, newest)


def rebase_timestamps(body: bytes, runs: list[tuple[int, int]], shift_ms: int) -> bytes:
    """The records in these slices, encoded for a base timestamp that is `shift_ms` earlier."""
    parts = []
    for pos, end in runs:
        while pos < end:
            size, pos = _long(body, pos)
            following = pos + (size >> 1)
            time, at = _long(body, pos + 1)
            stamp = ((time >> 1) ^ -(time & 1)) + shift_ms
            encoded = put_varint(stamp)
            parts.append(put_varint(1 + len(encoded) + following - at))
            parts.append(body[pos : pos + 1])
            parts.append(encoded)
            parts.append(body[at:following])
            pos = following
    return b"".join(parts)


def digest(key: bytes) -> int:
    """What stands for a long key."""
    return int.from_bytes(_blake2b()(key, digest_size=_DIGEST_BYTES).digest(), "big")


@cache
def _blake2b() -> Callable[..., Any]:
    # Loaded at first use, as it brings OpenSSL: not even a compaction needs it if no key is long.
    from hashlib import blake2b

    return blake2b


def _long(body: bytes, pos: int) -> tuple[int, int]:
    """A varint of any length, still zigzag, and the position after it."""
    value = shift = 0
    while True:
        byte = body[pos]
        pos += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, pos
        shift += 7
        if shift >= 7 * _MAX_BYTES:
            raise MalformedError(f"a varint is longer than {_MAX_BYTES} bytes")
