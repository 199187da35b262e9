"""The client side of Fetch as followers use it, written by hand for speed: requests become bytes, bytes become results.

The rows in messages/k01_fetch.py are the reference: property tests require equal bytes. Versions from 17 on. The
records of a response are slices of the received frame.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from struct import Struct
from struct import error as StructError
from typing import NamedTuple

from protocol.errors import MalformedError
from protocol.fast.primitives import I32, deduct, slice_bytes
from protocol.limits import MAX_ELEMENTS, MAX_TAGGED_FIELDS
from protocol.varints import decode_uvarint, encode_uvarint, skip_tagged_fields

# (partition, current leader epoch, fetch offset, last fetched epoch or -1, log start offset, partition max bytes)
ReplicaFetchPartition = tuple[int, int, int, int, int, int]


@dataclass(slots=True)
class ReplicaFetchRequest:
    """A Fetch request of a follower; sizes in bytes, waits in milliseconds. Topics are ids of 16 bytes."""

    replica_id: int
    replica_epoch: int
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    session_id: int
    session_epoch: int
    topics: list[tuple[bytes, list[ReplicaFetchPartition]]] = field(default_factory=list)
    forgotten: list[tuple[bytes, list[int]]] = field(default_factory=list)


class ReplicaFetchResult(NamedTuple):
    """One partition of a response. `diverging`, `leader`: (epoch, end offset), (leader id, leader epoch) if present."""

    topic_id: bytes
    partition: int
    error_code: int
    high_watermark: int
    log_start_offset: int
    diverging: tuple[int, int] | None
    leader: tuple[int, int] | None
    records: memoryview


class ReplicaFetchResponse(NamedTuple):
    """`error_code`: of the whole request or of its session.

    `partitions` decodes while it iterates, so that a large response can be processed in slices. It raises
    MalformedError where the response is malformed.
    """

    error_code: int
    session_id: int
    partitions: Iterator[ReplicaFetchResult]


_HEAD = Struct(">iiibii")
# With the number of tagged fields: replica directory id and high watermark are omitted.
_PARTITION = Struct(">iiqiqib")
# Tag, size, replica id, replica epoch, and the number of tagged fields of ReplicaState.
_REPLICA_STATE = Struct(">bbbiqb")
# No rack.
_NO_RACK = b"\1"


def encode_replica_fetch_request(request: ReplicaFetchRequest) -> bytearray:
    """Encode the body of a Fetch request; the versions from 17 on have equal bytes."""
    out = bytearray(
        _HEAD.pack(
            request.max_wait_ms, request.min_bytes, request.max_bytes, 0, request.session_id, request.session_epoch
        )
    )
    out += encode_uvarint(len(request.topics) + 1)
    for topic_id, partitions in request.topics:
        out += topic_id
        out += encode_uvarint(len(partitions) + 1)
        for partition in partitions:
            out += _PARTITION.pack(*partition, 0)
        out += b"\0"
    out += encode_uvarint(len(request.forgotten) + 1)
    for topic_id, indexes in request.forgotten:
        out += topic_id
        out += encode_uvarint(len(indexes) + 1)
        for index in indexes:
            out += I32.pack(index)
        out += b"\0"
    out += _NO_RACK
    if request.replica_id == -1 and request.replica_epoch == -1:
        # A struct with its default values is not encoded.
        out += b"\0"
    else:
        out += _REPLICA_STATE.pack(1, 1, 13, request.replica_id, request.replica_epoch, 0)
    return out


# Throttle time, error code, session id.
_RESPONSE = Struct(">ihi")
# Up to the first byte of the number of aborted transactions: 0 is null, and 1 an empty list.
_RESULT = Struct(">ihqqqB")
_ABORTED_SIZE = 17
_PREFERRED_REPLICA_SIZE = 4
_EPOCH_END_OFFSET = Struct(">iq")
_LEADER = Struct(">ii")
_DIVERGING_TAG, _LEADER_TAG = 0, 1
# Faster than the constructor, which adds a Python frame.
_make_result = partial(tuple.__new__, ReplicaFetchResult)

Tagged = tuple[int, int] | None


def decode_replica_fetch_response(buf: memoryview, pos: int = 0) -> ReplicaFetchResponse:
    """Decode a Fetch response body of a version from 17 on that starts at `pos`. Raises MalformedError."""
    if len(buf) - pos < _RESPONSE.size:
        raise MalformedError("Fetch response is truncated")
    _, error_code, session_id = _RESPONSE.unpack_from(buf, pos)
    return ReplicaFetchResponse(error_code, session_id, _decode_partitions(buf, pos + _RESPONSE.size))


def _decode_partitions(buf: memoryview, pos: int) -> Iterator[ReplicaFetchResult]:
    end = len(buf)
    try:
        topic_count, pos = decode_uvarint(buf, pos)
        topic_count -= 1
        remaining = deduct(MAX_ELEMENTS, topic_count, end - pos)
        for _ in range(topic_count):
            topic_id = bytes(buf[pos : pos + 16])
            count = buf[pos + 16]
            if count < 0x80:
                pos += 17
            else:
                count, pos = decode_uvarint(buf, pos + 16)
            count -= 1
            remaining = deduct(remaining, count, end - pos)
            for _ in range(count):
                index, code, high_watermark, _, log_start_offset, aborted = _RESULT.unpack_from(buf, pos)
                pos += _RESULT.size
                if aborted > 1:
                    pos = _skip_aborted(buf, pos - 1)
                pos += _PREFERRED_REPLICA_SIZE
                size = buf[pos]
                if size < 0x80:
                    pos += 1
                else:
                    size, pos = decode_uvarint(buf, pos)
                # 0 is null.
                records_end = pos + size - 1 if size else pos
                if records_end > end:
                    raise MalformedError(f"records of {size - 1} bytes exceed the frame")
                records = buf[pos:records_end]
                diverging: Tagged = None
                leader: Tagged = None
                if buf[records_end] == 0:
                    pos = records_end + 1
                else:
                    diverging, leader, pos = _decode_tagged_fields(buf, records_end)
                yield _make_result(
                    (topic_id, index, code, high_watermark, log_start_offset, diverging, leader, records)
                )
            pos = pos + 1 if buf[pos] == 0 else skip_tagged_fields(buf, pos)
        if buf[pos]:
            skip_tagged_fields(buf, pos)
    except (IndexError, StructError) as error:
        raise MalformedError("Fetch response is truncated") from error


def _skip_aborted(buf: memoryview, pos: int) -> int:
    """Return the position after the aborted transactions, which only consumers use."""
    count, pos = decode_uvarint(buf, pos)
    for _ in range(count - 1):
        pos = skip_tagged_fields(buf, pos + _ABORTED_SIZE - 1)
    return pos


def _decode_tagged_fields(buf: memoryview, pos: int) -> tuple[Tagged, Tagged, int]:
    """Return the diverging epoch, the current leader, and the position after the tagged fields of a partition."""
    diverging: Tagged = None
    leader: Tagged = None
    count, pos = decode_uvarint(buf, pos)
    if count > MAX_TAGGED_FIELDS:
        raise MalformedError(f"{count} tagged fields")
    for _ in range(count):
        tag, pos = decode_uvarint(buf, pos)
        size, pos = decode_uvarint(buf, pos)
        value = slice_bytes(buf, pos, size)
        if tag == _DIVERGING_TAG:
            diverging = _EPOCH_END_OFFSET.unpack_from(value, 0)
        elif tag == _LEADER_TAG:
            leader = _LEADER.unpack_from(value, 0)
        pos += size
    return diverging, leader, pos
