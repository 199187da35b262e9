"""The encoder of Fetch responses, written by hand for speed.

The rows in messages/k01_fetch.py are the reference: property tests require equal bytes. A response is a list of
buffers, among them the slices of the log that hold the records: these are not copied.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from struct import Struct
from typing import Protocol, cast

from protocol.fast.current_leader import (
    FIRST_FETCH_VERSION,
    CurrentLeader,
    encode_leader_field,
    encode_response_fields,
)
from protocol.fast.fetch_request import (
    FIRST_FLEXIBLE_VERSION,
    FIRST_SESSION_VERSION,
    FIRST_TOPIC_ID_VERSION,
    TopicKey,
)
from protocol.fast.primitives import I32, encode_compact_string, encode_string
from protocol.limits import MAX_ELEMENTS_AT_ONCE
from protocol.varints import encode_uvarint


class Records(Protocol):
    """Bytes of record batches, or an object of that length that is read when it is sent."""

    def __len__(self) -> int: ...


@dataclass(slots=True)
class FetchResult:
    """One partition of a response. `aborted` is None for read_uncommitted.

    `current_leader`: with an error because of the leader (KIP-951). `preferred_read_replica`: a follower from which the
    consumer should read (KIP-392), or -1; in a response to it there are no records.
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


@dataclass(slots=True)
class FetchResponse:
    """A Fetch response; `error_code`: of the whole request or of its session."""

    error_code: int
    session_id: int
    topics: list[tuple[TopicKey, list[FetchResult]]]


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
_ABORTED = Struct(">qq")

Buffers = list[bytes | bytearray | memoryview | Records]


def encode_fetch_response(response: FetchResponse, version: int) -> Buffers:
    """Encode a Fetch response body of versions 4 to 18 (throttle time 0) as buffers to write one after another."""
    return (
        _encode_flexible(response, version) if version >= FIRST_FLEXIBLE_VERSION else _encode_plain(response, version)
    )


def encode_fetch_in_steps(response: FetchResponse, version: int, out: Buffers) -> Iterator[None]:
    """Append the parts of a response body to `out`, and yield after each MAX_ELEMENTS_AT_ONCE topics or partitions."""
    is_flexible = version >= FIRST_FLEXIBLE_VERSION
    head = _encode_head(response, version)
    leaders: list[CurrentLeader] = []
    left = MAX_ELEMENTS_AT_ONCE
    for key, partitions in response.topics:
        head += _encode_topic(key, len(partitions), version)
        for start in range(0, len(partitions), MAX_ELEMENTS_AT_ONCE):
            some = partitions[start : start + MAX_ELEMENTS_AT_ONCE]
            if is_flexible:
                head = _append_flexible(out, head, some, version, leaders)
            else:
                head = _append_plain(out, head, some, version)
            left -= len(some)
            if left <= 0:
                out.append(head)
                head = bytearray()
                yield
                left = MAX_ELEMENTS_AT_ONCE
        if is_flexible:
            head += b"\0"
        left -= 1
    if is_flexible:
        head += encode_response_fields(leaders) if leaders else b"\0"
    out.append(head)


def _encode_head(response: FetchResponse, version: int) -> bytearray:
    """Encode what precedes the topics."""
    count = len(response.topics)
    if version >= FIRST_FLEXIBLE_VERSION:
        return bytearray(_RESPONSE_V12.pack(0, response.error_code, response.session_id) + encode_uvarint(count + 1))
    if version >= FIRST_SESSION_VERSION:
        return bytearray(_RESPONSE_V7.pack(0, response.error_code, response.session_id, count))
    return bytearray(_RESPONSE_V4.pack(0, count))


def _encode_topic(key: TopicKey, partition_count: int, version: int) -> bytes:
    """Encode what precedes the partitions of a topic."""
    if version < FIRST_FLEXIBLE_VERSION:
        return encode_string(key) + I32.pack(partition_count)  # type: ignore[arg-type]
    if version < FIRST_TOPIC_ID_VERSION:
        return encode_compact_string(key) + encode_uvarint(partition_count + 1)  # type: ignore[arg-type]
    return cast(bytes, key) + encode_uvarint(partition_count + 1)


def _encode_plain(response: FetchResponse, version: int) -> Buffers:
    """Encode versions 4 to 11."""
    head = _encode_head(response, version)
    out: Buffers = []
    for name, partitions in response.topics:
        head += _encode_topic(name, len(partitions), version)
        head = _append_plain(out, head, partitions, version)
    if head:
        out.append(head)
    return out


def _append_plain(out: Buffers, head: bytearray, partitions: list[FetchResult], version: int) -> bytearray:
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


def _encode_flexible(response: FetchResponse, version: int) -> Buffers:
    """Encode versions from 12 on."""
    head = _encode_head(response, version)
    out: Buffers = []
    leaders: list[CurrentLeader] = []
    for key, partitions in response.topics:
        head += _encode_topic(key, len(partitions), version)
        head = _append_flexible(out, head, partitions, version, leaders)
        head += b"\0"
    head += encode_response_fields(leaders) if leaders else b"\0"
    out.append(head)
    return out


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
