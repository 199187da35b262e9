"""The codec of Fetch, written by hand for speed.

The rows in messages/k01_fetch.py are the reference: property tests require equal bytes. A response is a list of
buffers, among them the slices of the log that hold the records: these are not copied.
"""

from collections.abc import Callable
from dataclasses import dataclass
from struct import Struct
from struct import error as StructError
from typing import Protocol

from protocol.errors import MalformedError
from protocol.fast.current_leader import FIRST_FETCH_VERSION, CurrentLeader, encode_leader_field, encode_response_fields
from protocol.fast.primitives import (
    I32,
    decode_string,
    deduct,
    encode_compact_string,
    encode_string,
    no_pause,
    slice_bytes,
)
from protocol.limits import MAX_ELEMENTS_AT_ONCE, MAX_REQUEST_ELEMENTS, MAX_TAGGED_FIELDS
from protocol.varints import decode_uvarint, encode_uvarint, skip_tagged_fields

LATEST_VERSION = 18
FIRST_TOPIC_ID_VERSION = 13
FIRST_FLEXIBLE_VERSION = 12
FIRST_RACK_VERSION = 11
FIRST_SESSION_VERSION = 7
FIRST_START_OFFSET_VERSION = 5
FIRST_REPLICA_STATE_VERSION = 15

# (partition, current leader epoch or -1, fetch offset, last fetched epoch or -1, partition max bytes,
#  log start offset of a follower or -1)
FetchedPartition = tuple[int, int, int, int, int, int]
# A topic is its name below version 13, its id of 16 bytes from 13 on.
TopicKey = str | bytes


@dataclass(slots=True)
class FetchRequest:
    """A decoded Fetch request; sizes in bytes, waits in milliseconds.

    `replica_id` is the follower's broker id, -1 for a consumer. `replica_epoch`: its broker epoch (KIP-903), or -1.
    `rack_id`: None before version 11, which may read from the leader only. `version`: of the API.
    """

    replica_id: int
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    isolation_level: int
    session_id: int
    session_epoch: int
    topics: list[tuple[TopicKey, list[FetchedPartition]]]
    forgotten: list[tuple[TopicKey, list[int]]]
    rack_id: str | None
    replica_epoch: int = -1
    version: int = LATEST_VERSION


class Records(Protocol):
    """Bytes of record batches, or an object of that length that is read when it is sent."""

    def __len__(self) -> int: ...


@dataclass(slots=True)
class FetchResult:
    """One partition of a response. `aborted` is None for read_uncommitted.

    `current_leader`: with an error because of the leader (KIP-951). `preferred_read_replica`: a follower from which the
    consumer should read (KIP-392), or -1; in a response to it there are no records. `error_message`: for the broker's
    log, since the response has no field for it.
    """

    partition: int
    error_code: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    aborted: list[tuple[int, int]] | None
    records: bytes | bytearray | memoryview | Records
    diverging: tuple[int, int] | None = None
    current_leader: CurrentLeader | None = None
    preferred_read_replica: int = -1
    error_message: str | None = None


@dataclass(slots=True)
class FetchResponse:
    """A Fetch response; `error_code`: of the whole request or of its session."""

    error_code: int
    session_id: int
    topics: list[tuple[TopicKey, list[FetchResult]]]


# Up to the number of topics. From version 12 on that is a varint.
_HEAD_V15 = Struct(">iiibii")
_HEAD_V12 = Struct(">iiiibii")
_HEAD_V7 = Struct(">iiiibiii")
_HEAD_V4 = Struct(">iiiibi")
_PARTITION_V4 = Struct(">iqi")
_PARTITION_V5 = Struct(">iqqi")
_PARTITION_V9 = Struct(">iiqqi")
_PARTITION_V12 = Struct(">iiqiqi")
_ABORTED = Struct(">qq")
_REPLICA_STATE = Struct(">iq")


def decode_fetch_request(buf: memoryview, pos: int, version: int, pause: Callable[[], None] = no_pause) -> FetchRequest:
    """Decode a Fetch request of versions 4 to 18 that starts at `pos`. Raises MalformedError.

    `pause` is called after each MAX_ELEMENTS_AT_ONCE topics or partitions.
    """
    decode = _decode_flexible if version >= FIRST_FLEXIBLE_VERSION else _decode_plain
    try:
        return decode(buf, pos, version, pause)
    except (IndexError, StructError) as error:
        raise MalformedError("Fetch request is truncated") from error


def _decode_plain(buf: memoryview, pos: int, version: int, pause: Callable[[], None]) -> FetchRequest:
    """Decode versions 4 to 11."""
    left = MAX_ELEMENTS_AT_ONCE
    session_id, session_epoch = 0, -1
    if version >= FIRST_SESSION_VERSION:
        replica_id, max_wait_ms, min_bytes, max_bytes, isolation_level, session_id, session_epoch, topic_count = (
            _HEAD_V7.unpack_from(buf, pos)
        )
        pos += 29
    else:
        replica_id, max_wait_ms, min_bytes, max_bytes, isolation_level, topic_count = _HEAD_V4.unpack_from(buf, pos)
        pos += 21
    remaining = deduct(MAX_REQUEST_ELEMENTS, topic_count, len(buf) - pos)
    topics: list[tuple[TopicKey, list[FetchedPartition]]] = []
    for _ in range(topic_count):
        left -= 1
        if not left:
            pause()
            left = MAX_ELEMENTS_AT_ONCE
        name, pos = decode_string(buf, pos, flexible=False)
        if name is None:
            raise MalformedError("Fetch request has a null topic name")
        count: int = I32.unpack_from(buf, pos)[0]
        pos += 4
        remaining = deduct(remaining, count, len(buf) - pos)
        partitions: list[FetchedPartition] = []
        current_epoch = log_start_offset = -1
        for _ in range(count):
            left -= 1
            if not left:
                pause()
                left = MAX_ELEMENTS_AT_ONCE
            if version >= 9:
                index, current_epoch, offset, log_start_offset, size = _PARTITION_V9.unpack_from(buf, pos)
                pos += 28
            elif version >= FIRST_START_OFFSET_VERSION:
                index, offset, log_start_offset, size = _PARTITION_V5.unpack_from(buf, pos)
                pos += 24
            else:
                index, offset, size = _PARTITION_V4.unpack_from(buf, pos)
                pos += 16
            partitions.append((index, current_epoch, offset, -1, size, log_start_offset))
        topics.append((name, partitions))
    forgotten: list[tuple[TopicKey, list[int]]] = []
    if version >= FIRST_SESSION_VERSION:
        topic_count = I32.unpack_from(buf, pos)[0]
        pos += 4
        remaining = deduct(remaining, topic_count, len(buf) - pos)
        for _ in range(topic_count):
            left -= 1
            if not left:
                pause()
                left = MAX_ELEMENTS_AT_ONCE
            name, pos = decode_string(buf, pos, flexible=False)
            if name is None:
                raise MalformedError("Fetch request has a null topic name")
            count = I32.unpack_from(buf, pos)[0]
            pos += 4
            remaining = deduct(remaining, count, len(buf) - pos)
            forgotten.append((name, _decode_indexes(buf, pos, count)))
            pos += 4 * count
    rack_id = None
    if version >= FIRST_RACK_VERSION:
        rack_id, pos = decode_string(buf, pos, flexible=False)
        if rack_id is None:
            raise MalformedError("Fetch request has a null rack id")
    return FetchRequest(
        replica_id, max_wait_ms, min_bytes, max_bytes, isolation_level,
        session_id, session_epoch, topics, forgotten, rack_id, -1, version,
    )  # fmt: skip


def _decode_flexible(buf: memoryview, pos: int, version: int, pause: Callable[[], None]) -> FetchRequest:
    """Decode versions from 12 on."""
    left = MAX_ELEMENTS_AT_ONCE
    replica_id = replica_epoch = -1
    if version >= FIRST_REPLICA_STATE_VERSION:
        max_wait_ms, min_bytes, max_bytes, isolation_level, session_id, session_epoch = _HEAD_V15.unpack_from(buf, pos)
        pos += 21
    else:
        replica_id, max_wait_ms, min_bytes, max_bytes, isolation_level, session_id, session_epoch = (
            _HEAD_V12.unpack_from(buf, pos)
        )
        pos += 25
    topic_count, pos = decode_uvarint(buf, pos)
    topic_count -= 1
    remaining = deduct(MAX_REQUEST_ELEMENTS, topic_count, len(buf) - pos)
    topics: list[tuple[TopicKey, list[FetchedPartition]]] = []
    for _ in range(topic_count):
        left -= 1
        if not left:
            pause()
            left = MAX_ELEMENTS_AT_ONCE
        key, pos = _topic_key(buf, pos, version)
        count, pos = decode_uvarint(buf, pos)
        count -= 1
        remaining = deduct(remaining, count, len(buf) - pos)
        partitions: list[FetchedPartition] = []
        for _ in range(count):
            left -= 1
            if not left:
                pause()
                left = MAX_ELEMENTS_AT_ONCE
            index, current_epoch, offset, last_epoch, log_start_offset, size = _PARTITION_V12.unpack_from(buf, pos)
            pos += 32
            pos = pos + 1 if buf[pos] == 0 else skip_tagged_fields(buf, pos)
            partitions.append((index, current_epoch, offset, last_epoch, size, log_start_offset))
        topics.append((key, partitions))
        pos = pos + 1 if buf[pos] == 0 else skip_tagged_fields(buf, pos)
    forgotten: list[tuple[TopicKey, list[int]]] = []
    topic_count, pos = decode_uvarint(buf, pos)
    topic_count -= 1
    remaining = deduct(remaining, topic_count, len(buf) - pos)
    for _ in range(topic_count):
        left -= 1
        if not left:
            pause()
            left = MAX_ELEMENTS_AT_ONCE
        key, pos = _topic_key(buf, pos, version)
        count, pos = decode_uvarint(buf, pos)
        count -= 1
        remaining = deduct(remaining, count, len(buf) - pos)
        forgotten.append((key, _decode_indexes(buf, pos, count)))
        pos = skip_tagged_fields(buf, pos + 4 * count)
    rack_id, pos = decode_string(buf, pos, flexible=True)
    if rack_id is None:
        raise MalformedError("Fetch request has a null rack id")
    if version >= FIRST_REPLICA_STATE_VERSION:
        replica_id, replica_epoch = _decode_replica_state(buf, pos)
    else:
        skip_tagged_fields(buf, pos)
    return FetchRequest(
        replica_id, max_wait_ms, min_bytes, max_bytes, isolation_level,
        session_id, session_epoch, topics, forgotten, rack_id, replica_epoch, version,
    )  # fmt: skip


def _topic_key(buf: memoryview, pos: int, version: int) -> tuple[TopicKey, int]:
    if version >= FIRST_TOPIC_ID_VERSION:
        topic_id = bytes(buf[pos : pos + 16])
        if len(topic_id) < 16:
            raise MalformedError("Fetch request is truncated")
        return topic_id, pos + 16
    name, pos = decode_string(buf, pos, flexible=True)
    if name is None:
        raise MalformedError("Fetch request has a null topic name")
    return name, pos


def _decode_indexes(buf: memoryview, pos: int, count: int) -> list[int]:
    slice_bytes(buf, pos, 4 * count)
    return [I32.unpack_from(buf, pos + 4 * i)[0] for i in range(count)]


def _decode_replica_state(buf: memoryview, pos: int) -> tuple[int, int]:
    """Return (replica id, epoch) of ReplicaState, a tagged field since version 15 (KIP-903); -1 if it is not there."""
    replica_id = replica_epoch = -1
    count, pos = decode_uvarint(buf, pos)
    if count > MAX_TAGGED_FIELDS:
        raise MalformedError(f"{count} tagged fields")
    for _ in range(count):
        tag, pos = decode_uvarint(buf, pos)
        size, pos = decode_uvarint(buf, pos)
        value = buf[pos : pos + size]
        if len(value) < size:
            raise MalformedError(f"field of {size} bytes exceeds the frame")
        if tag == 1:
            replica_id, replica_epoch = _REPLICA_STATE.unpack_from(value, 0)
        pos += size
    return replica_id, replica_epoch


# Throttle time, error code, session id and, below version 12, the number of topics.
_RESPONSE_V12 = Struct(">ihi")
_RESPONSE_V7 = Struct(">ihii")
_RESPONSE_V4 = Struct(">ii")
# A partition with null for the aborted transactions and -1 for the preferred read replica, as nearly all have it: up to
# the size of the records, in non-flexible versions with it.
_PLAIN_RESULT_V12 = Struct(">ihqqqbi")
_PLAIN_RESULT_V11 = Struct(">ihqqqiii")
_RESULT_V5 = Struct(">ihqqq")
_RESULT_V4 = Struct(">ihqq")

Buffers = list[bytes | bytearray | memoryview | Records]


def encode_fetch_response(
    response: FetchResponse, version: int, out: Buffers | None = None, pause: Callable[[], None] | None = None
) -> Buffers:
    """Encode a Fetch response body of versions 4 to 18 (throttle time 0) as buffers to write one after another.

    They are appended to `out`, which is returned. `pause` is called after at most MAX_ELEMENTS_AT_ONCE topics or
    partitions. It may remove what `out` has.
    """
    out = [] if out is None else out
    is_flexible = version >= FIRST_FLEXIBLE_VERSION
    append_results = _append_flexible if is_flexible else _append_plain
    # What precedes the records.
    head = bytearray()
    topics = response.topics
    if is_flexible:
        head += _RESPONSE_V12.pack(0, response.error_code, response.session_id) + encode_uvarint(len(topics) + 1)
    elif version >= FIRST_SESSION_VERSION:
        head += _RESPONSE_V7.pack(0, response.error_code, response.session_id, len(topics))
    else:
        head += _RESPONSE_V4.pack(0, len(topics))
    leaders: list[CurrentLeader] = []
    for key, partitions in topics:
        if version >= FIRST_TOPIC_ID_VERSION:
            head += key + encode_uvarint(len(partitions) + 1)  # type: ignore[operator, arg-type]
        elif is_flexible:
            head += encode_compact_string(key) + encode_uvarint(len(partitions) + 1)  # type: ignore[arg-type]
        else:
            head += encode_string(key) + I32.pack(len(partitions))  # type: ignore[arg-type]
        if pause is None:
            head = append_results(out, head, partitions, version, leaders)
        else:
            for start in range(0, len(partitions), MAX_ELEMENTS_AT_ONCE):
                some = partitions[start : start + MAX_ELEMENTS_AT_ONCE]
                out.append(append_results(out, head, some, version, leaders))
                head = bytearray()
                pause()
        if is_flexible:
            head += b"\0"
    if is_flexible:
        head += encode_response_fields(leaders) if leaders else b"\0"
    if head:
        out.append(head)
    return out


def _append_plain(
    out: Buffers, head: bytearray, partitions: list[FetchResult], version: int, leaders: list[CurrentLeader]
) -> bytearray:
    """Append partitions to `head`, which is moved to `out` when records follow. Returns the new head."""
    for result in partitions:
        size = len(result.records)
        if result.aborted is None and version == 11 and result.preferred_read_replica < 0:
            head += _PLAIN_RESULT_V11.pack(
                result.partition, result.error_code, result.high_watermark, result.last_stable_offset,
                result.log_start_offset, -1, -1, size,
            )  # fmt: skip
        else:
            _encode_result(head, result, version)
        if size:
            out += (head, result.records)
            head = bytearray()
    return head


def _encode_result(head: bytearray, result: FetchResult, version: int) -> None:
    """Encode a partition of versions 4 to 11, up to the size of the records."""
    offsets = result.high_watermark, result.last_stable_offset
    if version >= 5:
        head += _RESULT_V5.pack(result.partition, result.error_code, *offsets, result.log_start_offset)
    else:
        head += _RESULT_V4.pack(result.partition, result.error_code, *offsets)
    if result.aborted is None:
        head += b"\xff\xff\xff\xff"
    else:
        head += I32.pack(len(result.aborted))
        for producer_id, first_offset in result.aborted:
            head += _ABORTED.pack(producer_id, first_offset)
    if version >= 11:
        head += I32.pack(result.preferred_read_replica)
    head += I32.pack(len(result.records))


def _append_flexible(
    out: Buffers, head: bytearray, partitions: list[FetchResult], version: int, leaders: list[CurrentLeader]
) -> bytearray:
    """Append partitions to `head`, which is moved to `out` when records follow. Returns the new head."""
    for result in partitions:
        records, aborted, diverging = result.records, result.aborted, result.diverging
        offsets = result.high_watermark, result.last_stable_offset, result.log_start_offset
        if aborted is None and result.preferred_read_replica < 0:
            head += _PLAIN_RESULT_V12.pack(result.partition, result.error_code, *offsets, 0, -1)
        else:
            head += _RESULT_V5.pack(result.partition, result.error_code, *offsets)
            head += b"\0" if aborted is None else encode_uvarint(len(aborted) + 1)
            for producer_id, first_offset in aborted or ():
                head += _ABORTED.pack(producer_id, first_offset) + b"\0"
            head += I32.pack(result.preferred_read_replica)
        size = len(records)
        head += encode_uvarint(size + 1)
        if size:
            out += (head, records)
            head = bytearray()
        if result.current_leader is not None and version >= FIRST_FETCH_VERSION:
            head += b"\1" + encode_leader_field(1, result.current_leader)
            leaders.append(result.current_leader)
        else:
            head += b"\0" if diverging is None else _encode_diverging_epoch(diverging)
    return head


def _encode_diverging_epoch(diverging: tuple[int, int]) -> bytes:
    """Encode the tagged field 0: EpochEndOffset with epoch, end offset, and no tagged fields."""
    return b"\1\0\x0d" + Struct(">iqB").pack(*diverging, 0)
