"""The codec of Fetch, written by hand for speed.

The rows in messages/k01_fetch.py are the reference: property tests require equal bytes. A response is a list of
buffers, among them the slices of the log that hold the records: these are not copied.
"""

from struct import Struct
from struct import error as StructError
from typing import NamedTuple, Protocol

from protocol.errors import MalformedError
from protocol.fast.primitives import (
    I32,
    decode_count,
    decode_string,
    deduct,
    encode_compact_string,
    encode_string,
    slice_bytes,
)
from protocol.limits import MAX_REQUEST_ELEMENTS, MAX_TAGGED_FIELDS
from protocol.varints import decode_uvarint, encode_uvarint, skip_tagged_fields

FIRST_TOPIC_ID_VERSION = 13
FIRST_FLEXIBLE_VERSION = 12
FIRST_SESSION_VERSION = 7
FIRST_REPLICA_STATE_VERSION = 15

# (partition, current leader epoch or -1, fetch offset, last fetched epoch or -1, partition max bytes)
FetchedPartition = tuple[int, int, int, int, int]
# A topic is its name below version 13, its id of 16 bytes from 13 on.
TopicKey = str | bytes


class FetchRequest(NamedTuple):
    """A decoded Fetch request; sizes in bytes, waits in milliseconds."""

    replica_id: int
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    isolation_level: int
    session_id: int
    session_epoch: int
    topics: list[tuple[TopicKey, list[FetchedPartition]]]
    forgotten: list[tuple[TopicKey, list[int]]]
    rack_id: str


class Records(Protocol):
    """Bytes of record batches, or an object of that length that is read when it is sent."""

    def __len__(self) -> int: ...


class FetchResult(NamedTuple):
    """One partition of a response. `aborted` is None for read_uncommitted."""

    partition: int
    error_code: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    aborted: list[tuple[int, int]] | None
    records: bytes | bytearray | memoryview | Records
    diverging: tuple[int, int] | None = None


class FetchResponse(NamedTuple):
    """A Fetch response; `error_code` is that of the whole request or of its session."""

    error_code: int
    session_id: int
    topics: list[tuple[TopicKey, list[FetchResult]]]


_HEAD_V15 = Struct(">iiibii")
_HEAD_V7 = Struct(">iiiibii")
_HEAD_V4 = Struct(">iiiib")
_PARTITION_V4 = Struct(">iqi")
_PARTITION_V5 = Struct(">iqqi")
_PARTITION_V9 = Struct(">iiqqi")
_PARTITION_V12 = Struct(">iiqiqi")
_ABORTED = Struct(">qq")


def decode_fetch_request(buf: memoryview, pos: int, version: int) -> FetchRequest:
    """Decode a Fetch request of versions 4 to 18 that starts at `pos`. Raises MalformedError."""
    try:
        return _decode(buf, pos, version)
    except (IndexError, StructError) as error:
        raise MalformedError("Fetch request is truncated") from error


def _decode(buf: memoryview, pos: int, version: int) -> FetchRequest:
    flexible = version >= FIRST_FLEXIBLE_VERSION
    replica_id = -1
    session_id, session_epoch = 0, -1
    if version >= 15:
        max_wait_ms, min_bytes, max_bytes, isolation_level, session_id, session_epoch = _HEAD_V15.unpack_from(buf, pos)
        pos += _HEAD_V15.size
    elif version >= FIRST_SESSION_VERSION:
        replica_id, max_wait_ms, min_bytes, max_bytes, isolation_level, session_id, session_epoch = (
            _HEAD_V7.unpack_from(buf, pos)
        )
        pos += _HEAD_V7.size
    else:
        replica_id, max_wait_ms, min_bytes, max_bytes, isolation_level = _HEAD_V4.unpack_from(buf, pos)
        pos += _HEAD_V4.size
    count, pos = decode_count(buf, pos, flexible=flexible)
    remaining = deduct(MAX_REQUEST_ELEMENTS, count)
    topics = []
    for _ in range(count):
        key, pos = _topic_key(buf, pos, version)
        partitions, pos = _decode_partitions(buf, pos, version, remaining)
        remaining -= len(partitions)
        topics.append((key, partitions))
        if flexible:
            pos = pos + 1 if buf[pos] == 0 else skip_tagged_fields(buf, pos)
    forgotten: list[tuple[TopicKey, list[int]]] = []
    if version >= FIRST_SESSION_VERSION:
        count, pos = decode_count(buf, pos, flexible=flexible)
        remaining = deduct(remaining, count)
        for _ in range(count):
            key, pos = _topic_key(buf, pos, version)
            size, pos = decode_count(buf, pos, flexible=flexible)
            remaining = deduct(remaining, size)
            slice_bytes(buf, pos, 4 * size)
            forgotten.append((key, [I32.unpack_from(buf, pos + 4 * i)[0] for i in range(size)]))
            pos += 4 * size
            if flexible:
                pos = skip_tagged_fields(buf, pos)
    rack_id: str | None = ""
    if version >= 11:
        rack_id, pos = decode_string(buf, pos, flexible=flexible)
        if rack_id is None:
            raise MalformedError("Fetch request has a null rack id")
    if version >= FIRST_REPLICA_STATE_VERSION:
        replica_id = _decode_replica_id(buf, pos, replica_id)
    elif flexible:
        skip_tagged_fields(buf, pos)
    return FetchRequest(
        replica_id,
        max_wait_ms,
        min_bytes,
        max_bytes,
        isolation_level,
        session_id,
        session_epoch,
        topics,
        forgotten,
        rack_id or "",
    )


def _topic_key(buf: memoryview, pos: int, version: int) -> tuple[TopicKey, int]:
    if version >= FIRST_TOPIC_ID_VERSION:
        topic_id = bytes(buf[pos : pos + 16])
        if len(topic_id) < 16:
            raise MalformedError("Fetch request is truncated")
        return topic_id, pos + 16
    name, pos = decode_string(buf, pos, flexible=version >= FIRST_FLEXIBLE_VERSION)
    if name is None:
        raise MalformedError("Fetch request has a null topic name")
    return name, pos


def _decode_partitions(buf: memoryview, pos: int, version: int, remaining: int) -> tuple[list[FetchedPartition], int]:
    """Decode at most `remaining` partitions."""
    flexible = version >= FIRST_FLEXIBLE_VERSION
    count, pos = decode_count(buf, pos, flexible=flexible)
    deduct(remaining, count)
    partitions: list[FetchedPartition] = []
    last_epoch = current_epoch = -1
    for _ in range(count):
        if flexible:
            index, current_epoch, offset, last_epoch, _, size = _PARTITION_V12.unpack_from(buf, pos)
            pos += _PARTITION_V12.size
            pos = pos + 1 if buf[pos] == 0 else skip_tagged_fields(buf, pos)
        elif version >= 9:
            index, current_epoch, offset, _, size = _PARTITION_V9.unpack_from(buf, pos)
            pos += _PARTITION_V9.size
        elif version >= 5:
            index, offset, _, size = _PARTITION_V5.unpack_from(buf, pos)
            pos += _PARTITION_V5.size
        else:
            index, offset, size = _PARTITION_V4.unpack_from(buf, pos)
            pos += _PARTITION_V4.size
        partitions.append((index, current_epoch, offset, last_epoch, size))
    return partitions, pos


def _decode_replica_id(buf: memoryview, pos: int, replica_id: int) -> int:
    """Return the replica id of ReplicaState, a tagged field since version 15 (KIP-903); else `replica_id`."""
    count, pos = decode_uvarint(buf, pos)
    if count > MAX_TAGGED_FIELDS:
        raise MalformedError(f"{count} tagged fields")
    for _ in range(count):
        tag, pos = decode_uvarint(buf, pos)
        size, pos = decode_uvarint(buf, pos)
        value = slice_bytes(buf, pos, size)
        if tag == 1:
            replica_id = I32.unpack_from(value, 0)[0]
        pos += size
    return replica_id


_RESPONSE_HEAD = Struct(">ihi")
# A partition with null for the aborted transactions and -1 for the preferred read replica, as nearly all have it: up to
# the size of the records, in non-flexible versions with it.
_PLAIN_RESULT_V12 = Struct(">ihqqqbi")
_PLAIN_RESULT_V11 = Struct(">ihqqqiii")
_RESULT_V5 = Struct(">ihqqq")
_RESULT_V4 = Struct(">ihqq")
_NO_PREFERRED_REPLICA = I32.pack(-1)

Buffers = list[bytes | bytearray | memoryview | Records]


def encode_fetch_response(response: FetchResponse, version: int) -> Buffers:
    """Encode a Fetch response body of versions 4 to 18 (throttle time 0) as buffers to write one after another."""
    error_code, session_id, topics = response
    flexible = version >= FIRST_FLEXIBLE_VERSION
    head = bytearray(_RESPONSE_HEAD.pack(0, error_code, session_id) if version >= FIRST_SESSION_VERSION else 4)
    out: Buffers = []
    head += encode_uvarint(len(topics) + 1) if flexible else I32.pack(len(topics))
    for key, partitions in topics:
        if version >= FIRST_TOPIC_ID_VERSION:
            head += key  # type: ignore[arg-type]
        else:
            head += encode_compact_string(key) if flexible else encode_string(key)  # type: ignore[arg-type]
        head += encode_uvarint(len(partitions) + 1) if flexible else I32.pack(len(partitions))
        for result in partitions:
            index, code, high_watermark, last_stable_offset, log_start_offset, aborted, records, diverging = result
            size = len(records)
            offsets = high_watermark, last_stable_offset, log_start_offset
            if aborted is not None or version < 11:
                _encode_result(head, result, version, flexible)
            elif flexible:
                head += _PLAIN_RESULT_V12.pack(index, code, *offsets, 0, -1) + encode_uvarint(size + 1)
            else:
                head += _PLAIN_RESULT_V11.pack(index, code, *offsets, -1, -1, size)
            if size:
                out += (head, records)
                head = bytearray()
            if flexible:
                head += b"\0" if diverging is None else _encode_diverging_epoch(diverging)
        if flexible:
            head += b"\0"
    if flexible:
        head += b"\0"
    if head:
        out.append(head)
    return out


def _encode_result(head: bytearray, result: FetchResult, version: int, flexible: bool) -> None:
    index, code, high_watermark, last_stable_offset, log_start_offset, aborted, records, _ = result
    if version >= 5:
        head += _RESULT_V5.pack(index, code, high_watermark, last_stable_offset, log_start_offset)
    else:
        head += _RESULT_V4.pack(index, code, high_watermark, last_stable_offset)
    if flexible:
        head += encode_uvarint(0 if aborted is None else len(aborted) + 1)
        for producer_id, first_offset in aborted or ():
            head += _ABORTED.pack(producer_id, first_offset) + b"\0"
        head += _NO_PREFERRED_REPLICA
        head += encode_uvarint(len(records) + 1)
        return
    if aborted is None:
        head += b"\xff\xff\xff\xff"
    else:
        head += I32.pack(len(aborted))
        for producer_id, first_offset in aborted:
            head += _ABORTED.pack(producer_id, first_offset)
    if version >= 11:
        head += _NO_PREFERRED_REPLICA
    head += I32.pack(len(records))


def _encode_diverging_epoch(diverging: tuple[int, int]) -> bytes:
    """Encode the tagged field 0: EpochEndOffset with epoch, end offset, and no tagged fields."""
    return b"\1\0\x0d" + Struct(">iqB").pack(*diverging, 0)
