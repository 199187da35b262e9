"""The decoder of Fetch requests, written by hand for speed.

The rows in messages/k01_fetch.py are the reference: property tests require equal results.
"""

from collections.abc import Generator
from dataclasses import dataclass
from struct import Struct
from struct import error as StructError

from protocol.errors import MalformedError
from protocol.fast.primitives import I32, decode_string, deduct, slice_bytes
from protocol.limits import MAX_ELEMENTS_AT_ONCE, MAX_REQUEST_ELEMENTS, MAX_TAGGED_FIELDS
from protocol.varints import decode_uvarint, skip_tagged_fields

FIRST_TOPIC_ID_VERSION = 13
FIRST_FLEXIBLE_VERSION = 12
FIRST_SESSION_VERSION = 7
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
    `rack_id`: None before version 11, which may read from the leader only.
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


DecodeSteps = Generator[None, None, FetchRequest]


# Up to the number of topics. From version 12 on that is a varint.
_HEAD_V15 = Struct(">iiibii")
_HEAD_V12 = Struct(">iiiibii")
_HEAD_V7 = Struct(">iiiibiii")
_HEAD_V4 = Struct(">iiiibi")
_PARTITION_V4 = Struct(">iqi")
_PARTITION_V5 = Struct(">iqqi")
_PARTITION_V9 = Struct(">iiqqi")
_PARTITION_V12 = Struct(">iiqiqi")
_REPLICA_STATE = Struct(">iq")


def decode_fetch_request(buf: memoryview, pos: int, version: int) -> FetchRequest:
    """Decode a Fetch request of versions 4 to 18 that starts at `pos`. Raises MalformedError."""
    steps = (
        _decode_flexible(buf, pos, version) if version >= FIRST_FLEXIBLE_VERSION else _decode_plain(buf, pos, version)
    )
    try:
        while True:
            next(steps)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    except (IndexError, StructError) as error:
        raise MalformedError("Fetch request is truncated") from error


def decode_fetch_in_steps(buf: memoryview, pos: int, version: int) -> DecodeSteps:
    """Decode a Fetch request, and yield after each MAX_ELEMENTS_AT_ONCE topics or partitions. Raises MalformedError."""
    try:
        decode = _decode_flexible if version >= FIRST_FLEXIBLE_VERSION else _decode_plain
        return (yield from decode(buf, pos, version))
    except (IndexError, StructError) as error:
        raise MalformedError("Fetch request is truncated") from error


def _decode_plain(buf: memoryview, pos: int, version: int) -> DecodeSteps:
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
            yield
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
                yield
                left = MAX_ELEMENTS_AT_ONCE
            if version >= 9:
                index, current_epoch, offset, log_start_offset, size = _PARTITION_V9.unpack_from(buf, pos)
                pos += 28
            elif version >= 5:
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
                yield
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
    if version >= 11:
        rack_id, pos = decode_string(buf, pos, flexible=False)
        if rack_id is None:
            raise MalformedError("Fetch request has a null rack id")
    return FetchRequest(
        replica_id, max_wait_ms, min_bytes, max_bytes, isolation_level,
        session_id, session_epoch, topics, forgotten, rack_id,
    )  # fmt: skip


def _decode_flexible(buf: memoryview, pos: int, version: int) -> DecodeSteps:
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
            yield
            left = MAX_ELEMENTS_AT_ONCE
        key, pos = _topic_key(buf, pos, version)
        count, pos = decode_uvarint(buf, pos)
        count -= 1
        remaining = deduct(remaining, count, len(buf) - pos)
        partitions: list[FetchedPartition] = []
        for _ in range(count):
            left -= 1
            if not left:
                yield
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
            yield
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
        session_id, session_epoch, topics, forgotten, rack_id, replica_epoch,
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
        value = slice_bytes(buf, pos, size)
        if tag == 1:
            replica_id, replica_epoch = _REPLICA_STATE.unpack_from(value, 0)
        pos += size
    return replica_id, replica_epoch
