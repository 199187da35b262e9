"""The codec of Produce, written by hand for speed.

The rows in messages/k00_produce.py are the reference: property tests require equal bytes. The records are
memoryviews of the received frame: they are neither copied nor decoded.
"""

from collections.abc import Callable
from functools import partial
from struct import Struct
from struct import error as StructError
from typing import NamedTuple

from protocol.errors import MalformedError
from protocol.fast.current_leader import (
    FIRST_PRODUCE_VERSION,
    CurrentLeader,
    encode_leader_field,
    encode_response_fields,
)
from protocol.fast.primitives import (
    I16,
    I32,
    decode_string,
    encode_compact_string,
    encode_string,
    no_pause,
    refuse_count,
    refuse_many_elements,
)
from protocol.limits import MAX_ELEMENTS_AT_ONCE, MAX_REQUEST_ELEMENTS
from protocol.varints import decode_uvarint, encode_uvarint, skip_tagged_fields

FIRST_TOPIC_ID_VERSION = 13
FIRST_FLEXIBLE_VERSION = 9
# When a decoder has remembered more heads, it forgets all. A head has at most 277 bytes.
MAX_HEADS = 4096

# One partition of a request: (partition index, records or None).
PartitionRecords = tuple[int, memoryview | None]
# One topic of a request: (name below version 13, topic id of 16 bytes from 13 on; partitions).
TopicRecords = tuple[str | bytes, list[PartitionRecords]]
# (index, error code, base offset, log append time in ms or -1, log start offset,
#  [(index in batch, message)], error message or, instead of one, the current leader (KIP-951))
PartitionResult = tuple[int, int, int, int, int, tuple[tuple[int, str | None], ...], str | CurrentLeader | None]
TopicResult = tuple[str | bytes, list[PartitionResult]]


class ProduceRequest(NamedTuple):
    """A decoded Produce request."""

    transactional_id: str | None
    acks: int
    timeout_ms: int
    topics: list[TopicRecords]


# Faster than the NamedTuple's constructor, which adds a Python frame.
_make_request = partial(tuple.__new__, ProduceRequest)


# Acks, timeout, first byte of the number of topics.
_ACKS_AND_COMPACT_COUNT = Struct(">hiB")
# The length of the transactional id, which is usually null; acks, timeout, number of topics.
_HEAD_V3 = Struct(">hhii")
_ACKS_AND_COUNT = Struct(">hii")
# The index of a partition and the size of its records.
_INDEX_AND_SIZE = Struct(">ii")
_RESULT_V3 = Struct(">ihqq")
_RESULT_V5 = Struct(">ihqqq")
# With the number of record errors and the length of the error message.
_RESULT_V8 = Struct(">ihqqqih")
_RESULT_V9 = Struct(">ihqqqBBB")


def decode_produce_request(
    buf: memoryview, pos: int, version: int, pause: Callable[[], None] = no_pause
) -> ProduceRequest:
    """Decode a Produce request of versions 3 to 13 that starts at `pos`. Raises MalformedError.

    `pause` is called after each MAX_ELEMENTS_AT_ONCE topics and partitions.
    """
    try:
        if version >= FIRST_FLEXIBLE_VERSION:
            return _decode_flexible(buf, pos, version, pause)
        return _decode_classic(buf, pos, pause)
    except (IndexError, StructError) as error:
        raise MalformedError("Produce request is truncated") from error


def _decode_flexible(buf: memoryview, pos: int, version: int, pause: Callable[[], None]) -> ProduceRequest:
    # Varints of one byte, which most are, are decoded in place.
    uses_topic_ids = version >= FIRST_TOPIC_ID_VERSION
    end = len(buf)
    transactional_id, pos = (None, pos + 1) if buf[pos] == 0 else decode_string(buf, pos, flexible=True)
    acks, timeout_ms, topic_count = _ACKS_AND_COMPACT_COUNT.unpack_from(buf, pos)
    topic_count, pos = decode_uvarint(buf, pos + 6) if topic_count >= 0x80 else (topic_count, pos + 7)
    topic_count -= 1
    remaining = MAX_REQUEST_ELEMENTS - topic_count
    if not 0 <= topic_count <= end - pos or remaining < 0:
        refuse_count(topic_count, end - pos)
    topics: list[TopicRecords] = []
    key: str | bytes
    left = MAX_ELEMENTS_AT_ONCE
    for _ in range(topic_count):
        left -= 1
        if not left:
            pause()
            left = MAX_ELEMENTS_AT_ONCE
        if uses_topic_ids:
            key_end = pos + 16
            key = buf[pos:key_end].tobytes()
        else:
            size = buf[pos]
            size, pos = decode_uvarint(buf, pos) if size >= 0x80 else (size, pos + 1)
            key_end = pos + size - 1
            if not size:
                raise MalformedError("Produce request has a null topic name")
            key = buf[pos:key_end].tobytes().decode("utf-8", "replace")
        if key_end > end:
            raise MalformedError("a topic exceeds the frame")
        partition_count = buf[key_end]
        partition_count, pos = (
            decode_uvarint(buf, key_end) if partition_count >= 0x80 else (partition_count, key_end + 1)
        )
        partition_count -= 1
        remaining -= partition_count
        if not 0 <= partition_count <= end - pos or remaining < 0:
            refuse_count(partition_count, end - pos)
        partitions: list[PartitionRecords] = []
        for _ in range(partition_count):
            left -= 1
            if not left:
                pause()
                left = MAX_ELEMENTS_AT_ONCE
            index: int = I32.unpack_from(buf, pos)[0]
            size, pos = decode_uvarint(buf, pos + 4)
            records_end = pos + size - 1
            if records_end > end:
                raise MalformedError(f"records of {size - 1} bytes exceed the frame")
            if size:
                partitions.append((index, buf[pos:records_end]))
                pos = records_end
            else:
                partitions.append((index, None))
            pos = pos + 1 if buf[pos] == 0 else skip_tagged_fields(buf, pos)
        pos = pos + 1 if buf[pos] == 0 else skip_tagged_fields(buf, pos)
        topics.append((key, partitions))
    if buf[pos] != 0:
        skip_tagged_fields(buf, pos)
    return _make_request((transactional_id, acks, timeout_ms, topics))


def _decode_classic(buf: memoryview, pos: int, pause: Callable[[], None]) -> ProduceRequest:
    transactional_id = None
    id_size, acks, timeout_ms, topic_count = _HEAD_V3.unpack_from(buf, pos)
    if id_size == -1:
        pos += 12
    else:
        transactional_id, pos = decode_string(buf, pos, flexible=False)
        acks, timeout_ms, topic_count = _ACKS_AND_COUNT.unpack_from(buf, pos)
        pos += 10
    end = len(buf)
    remaining = MAX_REQUEST_ELEMENTS - topic_count
    if not 0 <= topic_count <= end - pos or remaining < 0:
        refuse_count(topic_count, end - pos)
    topics: list[TopicRecords] = []
    left = MAX_ELEMENTS_AT_ONCE
    for _ in range(topic_count):
        left -= 1
        if not left:
            pause()
            left = MAX_ELEMENTS_AT_ONCE
        name_size: int = I16.unpack_from(buf, pos)[0]
        pos += 2
        name_end = pos + name_size
        if name_size < 0 or name_end > end:
            raise MalformedError(f"topic name of {name_size} bytes in {end - pos} bytes")
        name = buf[pos:name_end].tobytes().decode("utf-8", "replace")
        partition_count: int = I32.unpack_from(buf, name_end)[0]
        pos = name_end + 4
        remaining -= partition_count
        if not 0 <= partition_count <= end - pos or remaining < 0:
            refuse_count(partition_count, end - pos)
        partitions: list[PartitionRecords] = []
        for _ in range(partition_count):
            left -= 1
            if not left:
                pause()
                left = MAX_ELEMENTS_AT_ONCE
            index, size = _INDEX_AND_SIZE.unpack_from(buf, pos)
            pos += 8
            records_end = pos + size
            if size >= 0 and records_end <= end:
                partitions.append((index, buf[pos:records_end]))
                pos = records_end
            elif size == -1:
                partitions.append((index, None))
            else:
                raise MalformedError(f"records of {size} bytes in {end - pos} bytes")
        topics.append((name, partitions))
    return _make_request((transactional_id, acks, timeout_ms, topics))


class ProduceDecoder:
    """The decoder of one version, which is faster for requests that repeat earlier ones.

    A producer sends the same bytes before each batch for a partition: acks, timeout, topic and partition. They are
    remembered with what they say, so that of an equal request only the records remain to be found. Any other request is
    decoded by `decode_produce_request`; tests require equal results.

    Such a head is what precedes the size of the records, in a request with one batch and without a transactional id:

        versions 3 to 8    id length 2 = -1 | acks 2 | timeout 4 | topics 4 = 1 | name length 2 | name |
                           partitions 4 = 1 | index 4
        versions 9 to 12   id 1 = 0 | acks 2 | timeout 4 | topics 1 = 2 | name length + 1 | name | partitions 1 = 2 |
                           index 4
        version 13         the same, but with a topic id of 16 bytes in place of the name and its length
    """

    __slots__ = ("_fixed_size", "_heads", "_is_flexible", "_length_pos")

    def __init__(self, version: int) -> None:
        self._is_flexible = version >= FIRST_FLEXIBLE_VERSION
        # A head has `_fixed_size` bytes and as many as the byte at `_length_pos` says: the lower byte of the name's
        # length, or the 0 of version 13 for no transactional id.
        if not self._is_flexible:
            self._fixed_size, self._length_pos = 22, 13
        elif version < FIRST_TOPIC_ID_VERSION:
            self._fixed_size, self._length_pos = 13, 8
        else:
            self._fixed_size, self._length_pos = 29, 0
        # (acks, timeout, topic, partition index)
        self._heads: dict[bytes, tuple[int, int, str | bytes, int]] = {}

    def decode(
        self, buf: memoryview, pos: int, version: int, pause: Callable[[], None] = refuse_many_elements
    ) -> ProduceRequest:
        """Decode a request as `decode_produce_request` does. `version` is the decoder's.

        By default it raises ManyElements if there are MAX_ELEMENTS_AT_ONCE topics and partitions.
        """
        try:
            head_end = pos + self._fixed_size + buf[pos + self._length_pos]
            head = buf[pos:head_end].tobytes()
            known = self._heads.get(head)
            if known is not None:
                if self._is_flexible:
                    size, pos_of_records = decode_uvarint(buf, head_end)
                    end = pos_of_records + size - 1
                    # Null, or tagged fields of the partition, the topic and the request.
                    is_special = not size or buf[end] or buf[end + 1] or buf[end + 2]
                else:
                    size, pos_of_records = I32.unpack_from(buf, head_end)[0], head_end + 4
                    end = pos_of_records + size
                    is_special = size < 0 or end > len(buf)
                if not is_special:
                    acks, timeout_ms, key, index = known
                    return _make_request((None, acks, timeout_ms, [(key, [(index, buf[pos_of_records:end])])]))
        except (IndexError, StructError):
            # The general decoder raises the error.
            return decode_produce_request(buf, pos, version, pause)
        request = decode_produce_request(buf, pos, version, pause)
        if known is None and self._is_head(head, request):
            self._remember(head, request)
        return request

    def _is_head(self, head: bytes, request: ProduceRequest) -> bool:
        """Return whether `head`, whose size is a guess, is the head of this request."""
        transactional_id, _, _, topics = request
        if transactional_id is not None or len(topics) != 1 or len(topics[0][1]) != 1:
            return False
        if not self._is_flexible:
            return head[12] == 0
        # These varints have one byte.
        return head[7] == 2 and head[-5] == 2 and (self._length_pos == 0 or head[8] < 0x80)

    def _remember(self, head: bytes, request: ProduceRequest) -> None:
        if len(self._heads) >= MAX_HEADS:
            self._heads.clear()
        _, acks, timeout_ms, [(key, [(index, _)])] = request
        self._heads[head] = acks, timeout_ms, key, index


def encode_produce_response(topics: list[TopicResult], version: int) -> bytes:
    """Encode a Produce response body of versions 3 to 13 (throttle time 0, no tagged fields)."""
    out: list[bytes] = []
    append_produce_response(topics, version, out)
    return b"".join(out)


def append_produce_response(
    topics: list[TopicResult], version: int, out: list[bytes], pause: Callable[[], None] | None = None
) -> None:
    """Append the parts of a response body to `out`.

    `pause` is called after at most MAX_ELEMENTS_AT_ONCE topics or partitions. It may remove what `out` has.
    """
    is_flexible = version >= FIRST_FLEXIBLE_VERSION
    append_results = _append_flexible if is_flexible else _append_classic
    out.append(encode_uvarint(len(topics) + 1) if is_flexible else I32.pack(len(topics)))
    leaders: list[CurrentLeader] = []
    for key, partitions in topics:
        if version >= FIRST_TOPIC_ID_VERSION:
            out.append(key + encode_uvarint(len(partitions) + 1))  # type: ignore[operator, arg-type]
        elif is_flexible:
            out.append(encode_compact_string(key) + encode_uvarint(len(partitions) + 1))  # type: ignore[arg-type]
        else:
            out.append(encode_string(key) + I32.pack(len(partitions)))  # type: ignore[arg-type]
        if pause is None:
            append_results(out, partitions, version, leaders)
        else:
            for start in range(0, len(partitions), MAX_ELEMENTS_AT_ONCE):
                append_results(out, partitions[start : start + MAX_ELEMENTS_AT_ONCE], version, leaders)
                pause()
        if is_flexible:
            out.append(b"\0")
    out.append(b"\0\0\0\0")
    if is_flexible:
        out.append(encode_response_fields(leaders) if leaders else b"\0")


def _append_flexible(
    out: list[bytes], partitions: list[PartitionResult], version: int, leaders: list[CurrentLeader]
) -> None:
    for index, code, base_offset, append_time_ms, log_start_offset, record_errors, message in partitions:
        if message is None and not record_errors:
            # No record errors, a null message, no tagged fields.
            out.append(_RESULT_V9.pack(index, code, base_offset, append_time_ms, log_start_offset, 1, 0, 0))
            continue
        out.append(_RESULT_V5.pack(index, code, base_offset, append_time_ms, log_start_offset))
        out.append(encode_uvarint(len(record_errors) + 1))
        for batch_index, text in record_errors:
            out.append(I32.pack(batch_index) + encode_compact_string(text) + b"\0")
        if not isinstance(message, CurrentLeader):
            out.append(encode_compact_string(message) + b"\0")
        elif version < FIRST_PRODUCE_VERSION:
            out.append(b"\0\0")
        else:
            # A null message, one tagged field.
            out.append(b"\0\1" + encode_leader_field(0, message))
            leaders.append(message)


def _append_classic(
    out: list[bytes], partitions: list[PartitionResult], version: int, leaders: list[CurrentLeader]
) -> None:
    for index, code, base_offset, append_time_ms, log_start_offset, record_errors, message in partitions:
        if version < 5:
            out.append(_RESULT_V3.pack(index, code, base_offset, append_time_ms))
        elif version < 8:
            out.append(_RESULT_V5.pack(index, code, base_offset, append_time_ms, log_start_offset))
        elif message is None and not record_errors:
            out.append(_RESULT_V8.pack(index, code, base_offset, append_time_ms, log_start_offset, 0, -1))
        else:
            out.append(_RESULT_V5.pack(index, code, base_offset, append_time_ms, log_start_offset))
            out.append(I32.pack(len(record_errors)))
            out.extend(I32.pack(batch_index) + encode_string(text) for batch_index, text in record_errors)
            out.append(encode_string(None if isinstance(message, CurrentLeader) else message))
