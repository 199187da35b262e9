"""Frames with lengths and counts beyond their bytes are rejected, without allocating memory for them."""

import tracemalloc
from contextlib import suppress
from random import Random

import pytest

from protocol.errors import MalformedError
from protocol.fast.fetch import decode_fetch_request
from protocol.fast.produce import decode_produce_request
from protocol.limits import MAX_REQUEST_ELEMENTS
from protocol.messages.header import RequestHeader
from protocol.messages.k00_produce import PartitionProduceData, ProduceRequest, TopicProduceData
from protocol.messages.k01_fetch import FetchPartition, FetchRequest, FetchTopic
from protocol.messages.k03_metadata import MetadataRequest, MetadataRequestTopic
from protocol.messages.k09_offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchRequestTopics
from protocol.messages.k11_classic_groups import HeartbeatRequest, SyncGroupRequest
from protocol.messages.k75_describe_topic_partitions import DescribeTopicPartitionsRequest
from protocol.schema.codec import decode, encode
from protocol.schema.layout import is_flexible_version, min_encoded_size
from protocol.schema.message import Message, StructType
from protocol.varints import encode_uvarint
from tests.unit.support.random_messages import all_versions, random_message

HUGE_CLASSIC = b"\x7f\xff\xff\xff"
HUGE_VARINT = b"\xff\xff\xff\xff\x0f"


@pytest.mark.parametrize(
    ("cls", "version", "encoded", "message"),
    [
        (MetadataRequest, 1, HUGE_CLASSIC, "size of 2147483647"),
        (MetadataRequest, 9, HUGE_VARINT + b"\0" * 20, "size of"),
        (MetadataRequest, 1, b"\xff\xff\xff\xfe", "size of -2"),
        (MetadataRequest, 0, b"\xff\xff\xff\xff", "topics claims a size of -1"),
        (MetadataRequest, 1, b"\0\0\0\2" + b"\0\1a" + b"\0", "truncated"),
        (MetadataRequest, 1, b"\0\0\0\2" + b"\0\1a", "size of 2"),
        (MetadataRequest, 1, b"\0\0\0\1\xff\xff", "topics.name claims a size of -1"),
        (MetadataRequest, 9, b"\2\0\0\0\0\0\0\0", "topics.name claims a size of -1"),
        (MetadataRequest, 9, b"\x80\x80\x80\x80\x80\1", "varint"),
        (SyncGroupRequest, 0, b"\0\1g\0\0\0\1\0\1m\0\0\0\1\0\1m" + HUGE_CLASSIC, "size of 2147483647"),
        (SyncGroupRequest, 4, b"\2g\0\0\0\1\2m\0\2\2m" + HUGE_VARINT, "size of"),
    ],
)
def test_sizes_are_checked_against_the_frame(cls: type[Message], version: int, encoded: bytes, message: str) -> None:
    with pytest.raises(MalformedError, match=message):
        decode(cls, encoded, version)


def test_invalid_utf_8_is_replaced() -> None:
    assert decode(MetadataRequest, b"\0\0\0\1\0\2\xc3\x28", 1).topics[0].name == "\ufffd("


def test_a_string_is_limited_to_int16_in_flexible_versions_too() -> None:
    body = b"\x81\x80\x02" + b"g" * 0x8000 + b"\0\0\0\1\2m\0\0"
    with pytest.raises(MalformedError, match="string of 32768 bytes"):
        decode(HeartbeatRequest, body, 4)


TAGS = b"\2g\0\0\0\1\2m\0"


@pytest.mark.parametrize(
    "tags",
    [HUGE_VARINT, b"\1", b"\1\5", b"\1\5\4abc", b"\2\5\3abc", b"\1\5" + HUGE_VARINT, b"\1\xff\xff\xff\xff\xff\x0f\0"],
    ids=["count", "no tag", "no size", "short", "one of two", "size", "number"],
)
def test_tagged_fields_are_checked_against_the_frame(tags: bytes) -> None:
    with pytest.raises(MalformedError):
        decode(HeartbeatRequest, TAGS + tags, 4)


def test_all_arrays_of_a_message_share_one_limit() -> None:
    """An element takes two bytes of the frame here, and many more in memory."""
    topic = OffsetFetchRequestTopics(name="t", partition_indexes=[0, 1])
    groups = [OffsetFetchRequestGroup(group_id="g", topics=None)] * (MAX_REQUEST_ELEMENTS - 4)
    groups.append(OffsetFetchRequestGroup(group_id="g", topics=[topic]))
    encoded = encode(OffsetFetchRequest(groups=groups), 8)
    assert decode(OffsetFetchRequest, encoded, 8).groups == groups
    topic.partition_indexes.append(2)
    with pytest.raises(MalformedError, match="more than 100000 elements"):
        decode(OffsetFetchRequest, encode(OffsetFetchRequest(groups=groups), 8), 8)


@pytest.mark.parametrize("version", [4, 12])
def test_produce_and_fetch_are_bounded_too(version: int) -> None:
    partitions = [PartitionProduceData(index=0, records=None)] * MAX_REQUEST_ELEMENTS
    request = ProduceRequest(acks=1, topic_data=[TopicProduceData(name="t", partition_data=partitions)])
    with pytest.raises(MalformedError, match="more than 100000 elements"):
        decode_produce_request(memoryview(encode(request, version)), 0, version)
    fetch = FetchRequest(topics=[FetchTopic(topic="t", partitions=[FetchPartition()] * MAX_REQUEST_ELEMENTS)])
    with pytest.raises(MalformedError, match="more than 100000 elements"):
        decode_fetch_request(memoryview(encode(fetch, version)), 0, version)


def test_the_number_of_tagged_fields_is_limited() -> None:
    for count in (101, 250):
        with pytest.raises(MalformedError):
            decode(HeartbeatRequest, TAGS + encode_uvarint(count) + b"\5\0" * count, 4)
    decode(HeartbeatRequest, TAGS + encode_uvarint(100) + b"\5\0" * 100, 4)


def test_unknown_tagged_fields_are_skipped() -> None:
    known = decode(HeartbeatRequest, TAGS + b"\0", 4)
    assert decode(HeartbeatRequest, TAGS + b"\2\5\3abc\x90\x01\0", 4) == known


@pytest.mark.parametrize("size", [b"\x05", b"\x07", HUGE_VARINT], ids=["short", "long", "beyond"])
def test_a_known_tagged_field_must_have_its_size(size: bytes) -> None:
    message = FetchRequest(cluster_id="abcde")
    encoded = encode(message, 12)
    assert encoded.endswith(b"\1\0\6\6abcde")
    with pytest.raises(MalformedError):
        decode(FetchRequest, encoded[:-7] + size + encoded[-6:] + b"\0\0", 12)


def test_a_nullable_struct_is_null_below_zero() -> None:
    """The byte before a nullable struct is negative if the struct is null (KIP-893)."""
    for byte in (b"\xff", b"\x80"):
        assert decode(DescribeTopicPartitionsRequest, b"\1\0\0\0\1" + byte + b"\0", 0).cursor is None
    with pytest.raises(MalformedError, match="truncated"):
        decode(DescribeTopicPartitionsRequest, b"\1\0\0\0\1\1", 0)


def test_the_client_id_of_a_flexible_header_is_a_classic_string() -> None:
    encoded = b"\0\3\0\x0c\0\0\0\7\0\2me\0"
    assert decode(RequestHeader, encoded, 2).client_id == "me"


def test_claimed_sizes_allocate_no_memory() -> None:
    """Any bytes of a valid encoding become a huge count; decoding takes no more memory than the frame allows."""
    cases = []
    for cls, version in all_versions():
        encoded = encode(random_message(cls, version, Random(f"{cls.__name__} {version}")), version)
        huge = HUGE_VARINT if is_flexible_version(cls, version) else HUGE_CLASSIC
        cases.append((cls, version, encoded[:200], huge))
        decode(cls, encoded, version)
    tracemalloc.start()
    try:
        for cls, version, encoded, huge in cases:
            for pos in range(0, len(encoded), 3):
                with suppress(MalformedError):
                    decode(cls, memoryview(encoded[:pos] + huge + encoded[pos + len(huge) :]), version)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2_000_000


def test_no_array_has_elements_without_bytes() -> None:
    """A count is checked against the remaining bytes, so an element must have at least one."""

    def check(cls: StructType, version: int, flexible: bool) -> None:
        for row in cls.__rows__.values():
            kind = row.type[0] if isinstance(row.type, list) else row.type
            if not row.is_in(version):
                continue
            assert min_encoded_size(kind, False, version, flexible) > 0
            if isinstance(kind, StructType):
                check(kind, version, flexible)

    for cls, version in all_versions():
        check(cls, version, is_flexible_version(cls, version))


def test_an_array_that_fills_the_frame_is_accepted() -> None:
    topics = [MetadataRequestTopic(name="") for _ in range(1000)]
    encoded = encode(MetadataRequest(topics=topics), 1)
    assert len(decode(MetadataRequest, encoded, 1).topics or ()) == 1000
