"""Declaring, making and encoding structs."""

import subprocess
import sys

import pytest

from protocol.errors import ErrorCode
from protocol.limits import MAX_REQUEST_ELEMENTS
from protocol.messages.header import RequestHeader, ResponseHeader
from protocol.messages.k01_fetch import (
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
    ReplicaState,
)
from protocol.messages.k03_metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from protocol.messages.k11_classic_groups import HeartbeatRequest, HeartbeatResponse, SyncGroupResponse
from protocol.messages.k15_groups import ListGroupsRequest
from protocol.messages.k18_api_versions import ApiVersionsResponse, SupportedFeatureKey
from protocol.messages.k75_describe_topic_partitions import Cursor, DescribeTopicPartitionsRequest
from protocol.schema.codec import decode, encode, encoder
from protocol.schema.message import Message, MessageInfo, Struct, message_info, row, version_range


def test_defaults_are_those_of_the_rows() -> None:
    request = MetadataRequest()
    assert request.topics == []
    assert request.allow_auto_topic_creation is True
    assert request.include_topic_authorized_operations is False
    assert FetchRequest().cluster_id is None
    assert FetchRequest().replica_state == ReplicaState(replica_id=-1, replica_epoch=-1)
    assert PartitionData().records is None
    assert MetadataRequestTopic().topic_id == bytes(16)


def test_defaults_that_can_change_are_fresh() -> None:
    first, second = MetadataRequest(), MetadataRequest()
    assert first.topics is not None
    first.topics.append(MetadataRequestTopic(name="t"))
    assert second.topics == []
    assert FetchRequest().replica_state is not FetchRequest().replica_state


def test_decoded_defaults_are_fresh_too() -> None:
    encoded = encode(FetchResponse(), 12)
    first, second = decode(FetchResponse, encoded, 12), decode(FetchResponse, encoded, 12)
    assert first.node_endpoints == []
    assert first.node_endpoints is not second.node_endpoints


def test_a_struct_has_the_fields_of_its_rows_only() -> None:
    with pytest.raises(TypeError):
        MetadataRequestTopic(nmae="t")  # type: ignore[call-arg]
    with pytest.raises(AttributeError):
        MetadataRequestTopic().nmae = "t"  # type: ignore[attr-defined]
    with pytest.raises(TypeError):
        MetadataRequestTopic(bytes(16), "t")  # type: ignore[call-arg]


def test_equality_and_repr_are_by_fields() -> None:
    assert Cursor(topic_name="t") == Cursor(topic_name="t", partition_index=0)
    assert Cursor(topic_name="t") != Cursor(topic_name="u")
    assert Cursor() != MetadataRequestTopic()
    assert repr(Cursor(topic_name="t")) == "Cursor(topic_name='t', partition_index=0)"
    with pytest.raises(TypeError):
        hash(Cursor())


def test_message_info_and_version_ranges() -> None:
    assert message_info(MetadataRequest) == MessageInfo(3, "request", 0, 13, 9, MAX_REQUEST_ELEMENTS)
    assert message_info(ResponseHeader).key is None
    assert version_range("3") == (3, 3)
    assert version_range("2-5") == (2, 5)
    assert version_range("4+")[0] == 4
    first, last = version_range("none")
    assert first > last


def test_a_message_declared_in_a_test_is_encoded_and_decoded() -> None:
    class Point(Struct):
        x: int = row("uint16", "0+")
        y: float = row("float64", "1+", default=0.5, ignorable=True)

    class Shape(Message, kind="data", versions="0-1", flexible="1+"):
        points: list[Point] = row([Point], "0+")
        top: Point = row(Point, "1+", tag=3)

    shape = Shape(points=[Point(x=65535, y=1.5)], top=Point(x=1))
    with pytest.raises(ValueError, match="Shape v0 has no top"):
        encode(shape, 0)
    assert decode(Shape, encode(shape, 1), 1) == shape
    shape.top = Point()
    assert encode(shape, 0) == b"\0\0\0\1\xff\xff"
    assert encode(shape, 1) == b"\2\xff\xff\x3f\xf8\0\0\0\0\0\0\0\0"


def test_a_version_that_does_not_exist() -> None:
    for version in (-1, 14):
        with pytest.raises(ValueError, match="MetadataRequest has no version"):
            encode(MetadataRequest(), version)
        with pytest.raises(ValueError, match="MetadataRequest has no version"):
            decode(MetadataRequest, b"", version)


def test_a_field_that_the_version_lacks_is_rejected() -> None:
    with pytest.raises(ValueError, match="MetadataRequest v3 has no allow_auto_topic_creation"):
        encode(MetadataRequest(allow_auto_topic_creation=False), 3)
    with pytest.raises(ValueError, match="ListGroupsRequest v3 has no states_filter"):
        encode(ListGroupsRequest(states_filter=["Stable"]), 3)
    with pytest.raises(ValueError, match="HeartbeatRequest v2 has no group_instance_id"):
        encode(HeartbeatRequest(group_instance_id="i"), 2)
    with pytest.raises(ValueError, match="FetchRequest v12 has no replica_state"):
        encode(FetchRequest(replica_state=ReplicaState(replica_id=1)), 12)


def test_an_ignorable_field_that_the_version_lacks_is_dropped() -> None:
    plain = encode(MetadataResponse(), 0)
    assert encode(MetadataResponse(throttle_time_ms=7, cluster_id="c", controller_id=1), 0) == plain


@pytest.mark.parametrize("version", [2, 9])
def test_null_is_rejected_where_the_version_has_none(version: int) -> None:
    response = MetadataResponse(topics=[MetadataResponseTopic(name=None)])
    with pytest.raises(ValueError, match="cannot carry"):
        encode(response, version)
    assert decode(MetadataResponse, encode(response, 12), 12) == response


def test_null_arrays_and_structs() -> None:
    with pytest.raises(ValueError, match="cannot carry"):
        encode(MetadataRequest(topics=None), 0)
    assert encode(MetadataRequest(topics=None), 1) == b"\xff\xff\xff\xff"
    assert encode(MetadataRequest(topics=None), 11) == b"\0\1\0\0"
    assert encode(DescribeTopicPartitionsRequest(cursor=None), 0) == b"\1\0\0\x07\xd0\xff\0"


@pytest.mark.parametrize("version", [0, 4])
def test_a_string_longer_than_int16_cannot_be_encoded(version: int) -> None:
    longest = HeartbeatRequest(group_id="g" * 0x7FFF)
    assert decode(HeartbeatRequest, encode(longest, version), version) == longest
    with pytest.raises(ValueError, match=r"cannot carry|string of 32768 bytes"):
        encode(HeartbeatRequest(group_id="g" * 0x8000), version)


@pytest.mark.parametrize(
    "message",
    [
        HeartbeatResponse(error_code=1 << 15),
        HeartbeatResponse(error_code="no"),  # type: ignore[arg-type]
        MetadataResponse(topics=[MetadataResponseTopic(name="\ud800")]),
        MetadataResponse(topics=5),  # type: ignore[arg-type]
    ],
    ids=["range", "type", "surrogate", "no list"],
)
def test_a_value_that_does_not_fit_is_a_value_error(message: Message) -> None:
    with pytest.raises(ValueError, match=r"cannot carry|surrogates"):
        encode(message, 1)


def test_tags_are_written_in_order_and_only_if_set() -> None:
    assert encode(ApiVersionsResponse(), 3).endswith(b"\1\0\0\0\0\0")
    response = ApiVersionsResponse(
        zk_migration_ready=True, supported_features=[SupportedFeatureKey(name="f", max_version=2)]
    )
    assert encode(response, 3).endswith(b"\2" + b"\0\x08\2\2f\0\0\0\2\0" + b"\3\1\1")


def test_tags_of_a_version_without_them_follow_the_rule_for_absent_fields() -> None:
    assert encode(ApiVersionsResponse(zk_migration_ready=True), 2) == encode(ApiVersionsResponse(), 2)


def test_error_codes_and_tuples_are_accepted() -> None:
    partition = MetadataResponsePartition(error_code=ErrorCode.LEADER_NOT_AVAILABLE, replica_nodes=(1, 2))  # type: ignore[arg-type]
    response = MetadataResponse(topics=[MetadataResponseTopic(name="t", partitions=[partition])])
    decoded = decode(MetadataResponse, encode(response, 12), 12).topics[0].partitions[0]
    assert decoded.error_code == ErrorCode.LEADER_NOT_AVAILABLE
    assert decoded.replica_nodes == [1, 2]


@pytest.mark.parametrize("count", [0, 8, 9, 126, 127, 20_000])
@pytest.mark.parametrize("version", [5, 12])
def test_arrays_of_numbers_of_any_size(version: int, count: int) -> None:
    partition = MetadataResponsePartition(replica_nodes=list(range(count)))
    response = MetadataResponse(topics=[MetadataResponseTopic(name="t", partitions=[partition])])
    assert decode(MetadataResponse, encode(response, version), version) == response


def test_records_are_not_copied() -> None:
    records = b"r" * 1000
    response = FetchResponse(
        responses=[FetchableTopicResponse(topic="t", partitions=[PartitionData(records=memoryview(records))])]
    )
    out: list[bytes | bytearray | memoryview] = []
    encoder(FetchResponse, 12)(response, out)
    assert any(part is response.responses[0].partitions[0].records for part in out)
    frame = memoryview(b"".join(out))
    decoded = decode(FetchResponse, frame, 12).responses[0].partitions[0].records
    assert isinstance(decoded, memoryview)
    assert decoded.obj is frame.obj
    assert decoded == records


def test_bytes_are_copied() -> None:
    frame = memoryview(bytearray(encode(SyncGroupResponse(assignment=b"plan"), 0)))
    decoded = decode(SyncGroupResponse, frame, 0).assignment
    assert type(decoded) is bytes


def test_names_of_fetch_follow_the_version() -> None:
    by_name = FetchRequest(topics=[FetchTopic(topic="t", partitions=[FetchPartition(partition=1)])])
    decoded = decode(FetchRequest, encode(by_name, 13), 13)
    assert (decoded.topics[0].topic, decoded.topics[0].topic_id) == ("", bytes(16))


def test_headers() -> None:
    header = RequestHeader(request_api_key=3, request_api_version=12, correlation_id=7, client_id="me")
    assert encode(header, 1) == b"\0\3\0\x0c\0\0\0\7\0\2me"
    assert encode(header, 2) == b"\0\3\0\x0c\0\0\0\7\0\2me\0"
    assert encode(ResponseHeader(correlation_id=7), 0) == b"\0\0\0\7"
    assert encode(ResponseHeader(correlation_id=7), 1) == b"\0\0\0\7\0"


def test_declaring_loads_neither_the_generator_nor_construct() -> None:
    """The start of the broker must not wait for code that no connection has asked for."""
    script = (
        "import sys, protocol.messages.k03_metadata, protocol.schema.codec\n"
        "lazy = ('construct', 'protocol.schema.layout', 'protocol.schema.decoder_source', 'protocol.schema.grammar')\n"
        "print([name for name in sys.modules if name in lazy])\n"
        "protocol.schema.codec.encode(protocol.messages.k03_metadata.MetadataRequest(), 12)\n"
        "print('construct' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["[]", "False"]
