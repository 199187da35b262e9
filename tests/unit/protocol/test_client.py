"""The client side of a connection: correlation, pieces of any size, damage, negotiation of versions."""

from random import Random

import pytest

from protocol.apis import APIS, ApiKey
from protocol.client import (
    ClientConnection,
    EncodedRequest,
    NegotiationError,
    Response,
    UnexpectedResponseError,
    UnsupportedVersionError,
)
from protocol.errors import ErrorCode, MalformedError
from protocol.framing import decode_request_header, encode_frame, encode_response_header
from protocol.messages.k00_produce import ProduceRequest
from protocol.messages.k03_metadata import MetadataRequest, MetadataResponse
from protocol.messages.k11_classic_groups import HeartbeatRequest, HeartbeatResponse
from protocol.messages.k18_api_versions import ApiVersion, ApiVersionsRequest, ApiVersionsResponse, FinalizedFeatureKey
from protocol.schema.codec import decode, encode
from protocol.schema.message import Message, message_info

HEARTBEAT = HeartbeatRequest(group_id="g", generation_id=1, member_id="m")


def response_frame(message: Message, version: int, correlation_id: int) -> bytes:
    key = message_info(type(message)).key
    assert key is not None
    return encode_frame(encode_response_header(key, version, correlation_id), encode(message, version))


def heartbeat_frame(correlation_id: int, error_code: int = 0, version: int = 4) -> bytes:
    return response_frame(HeartbeatResponse(error_code=error_code), version, correlation_id)


def responses(connection: ClientConnection) -> list[Response]:
    results = []
    while (response := connection.next_response()) is not None:
        results.append(response)
    return results


# Requests and responses.


def test_a_request_is_a_frame_with_header_and_body() -> None:
    request = ClientConnection("me").send(HEARTBEAT, 4)
    header = decode_request_header(request.frame, 4)
    assert header[:4] == (ApiKey.HEARTBEAT, 4, request.correlation_id, "me")
    assert int.from_bytes(request.frame[:4], "big") == len(request.frame) - 4
    assert decode(HeartbeatRequest, request.frame, 4, header.body_pos) == HEARTBEAT


def test_correlation_ids_are_consecutive_and_start_again_after_the_largest() -> None:
    connection = ClientConnection("me")
    assert [connection.send(HEARTBEAT, 4).correlation_id for _ in range(3)] == [1, 2, 3]
    connection._last_correlation_id = (1 << 31) - 2
    assert [connection.send(HEARTBEAT, 4).correlation_id for _ in range(2)] == [(1 << 31) - 1, 0]


def test_responses_belong_to_requests_of_other_apis_and_versions() -> None:
    connection = ClientConnection(None)
    connection.send(HEARTBEAT, 4)
    connection.send(MetadataRequest(topics=None), 12)
    connection.send(HEARTBEAT, 3)
    assert [request.version for request in connection.in_flight] == [4, 12, 3]
    connection.receive(
        heartbeat_frame(1, 25) + response_frame(MetadataResponse(cluster_id="c"), 12, 2) + heartbeat_frame(3, version=3)
    )
    first, second, third = responses(connection)
    assert first.decode(HeartbeatResponse).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert (second.correlation_id, second.api_key, second.version) == (2, ApiKey.METADATA, 12)
    assert second.decode(MetadataResponse).cluster_id == "c"
    assert third.decode(HeartbeatResponse).error_code == 0
    assert not connection.in_flight


def test_a_stream_split_at_every_byte() -> None:
    stream = heartbeat_frame(1) + response_frame(MetadataResponse(cluster_id="c"), 12, 2) + heartbeat_frame(3)
    for split in range(len(stream) + 1):
        connection = ClientConnection("me")
        for request, version in ((HEARTBEAT, 4), (MetadataRequest(topics=None), 12), (HEARTBEAT, 4)):
            connection.send(request, version)
        connection.receive(stream[:split])
        received = responses(connection)
        connection.receive(stream[split:])
        received += responses(connection)
        assert [response.correlation_id for response in received] == [1, 2, 3]
        assert received[1].decode(MetadataResponse).cluster_id == "c"


def test_a_stream_byte_by_byte() -> None:
    stream = b"".join(heartbeat_frame(number) for number in (1, 2, 3))
    connection = ClientConnection("me")
    for _ in range(3):
        connection.send(HEARTBEAT, 4)
    count = 0
    for pos in range(len(stream)):
        assert count == pos * 3 // len(stream)
        connection.receive(stream[pos : pos + 1])
        count += len(responses(connection))
    assert count == 3


def test_a_request_without_a_response() -> None:
    """Produce with acks=0 has no response."""
    connection = ClientConnection("me")
    assert connection.send(ProduceRequest(acks=0), 9, expect_response=False).correlation_id == 1
    connection.send(HEARTBEAT, 4)
    connection.receive(heartbeat_frame(2))
    assert [response.correlation_id for response in responses(connection)] == [2]


def test_an_encoded_body() -> None:
    connection = ClientConnection("me")
    encoded = connection.send_body(ApiKey.HEARTBEAT, 4, encode(HEARTBEAT, 4))
    assert encoded == ClientConnection("me").send(HEARTBEAT, 4)
    connection.receive(heartbeat_frame(1))
    (response,) = responses(connection)
    assert response.frame[response.body_pos :] == encode(HeartbeatResponse(), 4)


def test_only_requests_can_be_sent() -> None:
    with pytest.raises(TypeError, match="HeartbeatResponse is not a request"):
        ClientConnection("me").send(HeartbeatResponse(), 4)
    with pytest.raises(ValueError, match="has no group_instance_id"):
        ClientConnection("me").send(HeartbeatRequest(group_instance_id="i"), 2)


# Damage.


def test_another_correlation_id() -> None:
    connection = ClientConnection("me")
    for _ in range(2):
        connection.send(HEARTBEAT, 4)
    connection.receive(heartbeat_frame(2))
    with pytest.raises(UnexpectedResponseError, match=r"correlation id 2, expected 1 \(HEARTBEAT\)"):
        connection.next_response()


def test_a_response_without_a_request() -> None:
    connection = ClientConnection("me")
    connection.receive(heartbeat_frame(1))
    with pytest.raises(UnexpectedResponseError, match="without a request"):
        connection.next_response()


def test_responses_before_the_damage_are_returned() -> None:
    connection = ClientConnection("me")
    connection.send(HEARTBEAT, 4)
    connection.receive(heartbeat_frame(1) + heartbeat_frame(2))
    assert connection.next_response() is not None
    for _ in range(2):
        with pytest.raises(UnexpectedResponseError):
            connection.next_response()
        connection.send(HEARTBEAT, 4)


@pytest.mark.parametrize("size", [b"\xff\xff\xff\xff", b"\0\0\0\0", b"\0\0\0\3", b"\0\0\1\1", b"\x7f\xff\xff\xff"])
def test_a_frame_of_a_bad_size(size: bytes) -> None:
    connection = ClientConnection("me", max_response_bytes=256)
    connection.send(HEARTBEAT, 4)
    connection.receive(size)
    with pytest.raises(MalformedError, match="where 4 to 256 are allowed"):
        connection.next_response()


def test_the_largest_frame() -> None:
    connection = ClientConnection("me", max_response_bytes=11)
    connection.send(HEARTBEAT, 4)
    frame = heartbeat_frame(1)
    assert len(frame) == 4 + 11 + 1
    connection.receive(frame)
    with pytest.raises(MalformedError):
        connection.next_response()
    connection = ClientConnection("me", max_response_bytes=12)
    connection.send(HEARTBEAT, 4)
    connection.receive(frame)
    assert connection.next_response() is not None


def test_a_truncated_response_is_malformed() -> None:
    connection = ClientConnection("me")
    for _ in range(2):
        connection.send(HEARTBEAT, 4)
    connection.receive(encode_frame(b"\0\0\0\1\0", b"\0\0") + encode_frame(b"\0\0\0\2", b""))
    response = connection.next_response()
    assert response is not None
    with pytest.raises(MalformedError, match="truncated"):
        response.decode(HeartbeatResponse)
    with pytest.raises(MalformedError, match="header is truncated"):
        connection.next_response()


def test_garbage_is_malformed() -> None:
    rng = Random(1)
    for _ in range(2000):
        connection = ClientConnection("me")
        connection.send(MetadataRequest(topics=None), 12)
        stream = bytearray(response_frame(MetadataResponse(cluster_id="c"), 12, 1))
        for _ in range(rng.randint(1, 4)):
            stream[rng.randrange(len(stream))] = rng.randrange(256)
        connection.receive(stream)
        try:
            for response in responses(connection):
                response.decode(MetadataResponse)
        except MalformedError:
            pass


# Versions.


Ranges = dict[int, tuple[int, int]]


def api_versions_frame(correlation_id: int, version: int, rows: Ranges, error_code: int = 0) -> bytes:
    api_keys = [ApiVersion(api_key=key, min_version=low, max_version=high) for key, (low, high) in rows.items()]
    features = [FinalizedFeatureKey(name="transaction.version", max_version_level=2, min_version_level=1)]
    message = ApiVersionsResponse(error_code=error_code, api_keys=api_keys, finalized_features=features)
    return response_frame(message, version, correlation_id)


def requested_version(request: EncodedRequest | None) -> int:
    assert request is not None
    header = decode_request_header(request.frame, 4)
    assert header.api_key == ApiKey.API_VERSIONS
    return header.version


def received(connection: ClientConnection, frame: bytes) -> Response:
    connection.receive(frame)
    response = connection.next_response()
    assert response is not None
    return response


def negotiated(rows: Ranges, max_versions: dict[int, int] | None = None) -> ClientConnection:
    connection = ClientConnection("me", max_versions=max_versions)
    version = requested_version(connection.start_negotiation())
    assert connection.continue_negotiation(received(connection, api_versions_frame(1, version, rows))) is None
    return connection


def test_the_highest_common_version_is_used() -> None:
    newest = {key: (0, api.max_version) for key, api in APIS.items()}
    assert negotiated(newest).version(ApiKey.METADATA) == APIS[ApiKey.METADATA].max_version
    assert negotiated(newest | {ApiKey.METADATA: (0, 99)}).version(ApiKey.METADATA) == APIS[ApiKey.METADATA].max_version
    assert negotiated(newest | {ApiKey.METADATA: (0, 5)}).version(ApiKey.METADATA) == 5
    assert negotiated(newest, {ApiKey.METADATA: 4}).version(ApiKey.METADATA) == 4
    assert negotiated(newest, {ApiKey.METADATA: 99}).version(ApiKey.METADATA) == APIS[ApiKey.METADATA].max_version
    connection = negotiated(newest | {ApiKey.HEARTBEAT: (0, 2)})
    assert decode_request_header(connection.send(HEARTBEAT).frame, 4).version == 2
    assert connection.finalized_features == {"transaction.version": 2}


def test_no_common_version() -> None:
    connection = negotiated({ApiKey.FETCH: (0, 3), ApiKey.METADATA: (9, 13)}, {ApiKey.METADATA: 8})
    with pytest.raises(UnsupportedVersionError, match="FETCH: the broker supports 0 to 3, the client 4 to 18"):
        connection.version(ApiKey.FETCH)
    with pytest.raises(UnsupportedVersionError, match="METADATA: the broker supports 9 to 13, the client 0 to 8"):
        connection.version(ApiKey.METADATA)
    with pytest.raises(UnsupportedVersionError, match="HEARTBEAT: the broker supports no version"):
        connection.send(HEARTBEAT)
    with pytest.raises(UnsupportedVersionError, match="VOTE is not implemented"):
        connection.version(ApiKey.VOTE)
    assert not connection.supports(ApiKey.FETCH)
    assert negotiated({ApiKey.FETCH: (4, 4)}).supports(ApiKey.FETCH)


def test_a_broker_that_does_not_know_the_version_of_api_versions() -> None:
    """KIP-511: it responds in version 0 with the versions that it supports."""
    connection = ClientConnection("me")
    assert requested_version(connection.start_negotiation()) == 5
    rows = {ApiKey.API_VERSIONS: (0, 2)}
    rejected = received(connection, api_versions_frame(1, 0, rows, ErrorCode.UNSUPPORTED_VERSION))
    assert rejected.version == 0
    assert requested_version(connection.continue_negotiation(rejected)) == 2
    accepted = received(connection, api_versions_frame(2, 2, rows | {ApiKey.METADATA: (0, 8)}))
    assert connection.continue_negotiation(accepted) is None
    assert connection.version(ApiKey.METADATA) == 8


def test_a_broker_that_rejects_the_version_and_lists_nothing() -> None:
    connection = ClientConnection("me", max_versions={ApiKey.API_VERSIONS: 3})
    assert requested_version(connection.start_negotiation()) == 3
    rejected = received(connection, api_versions_frame(1, 0, {}, ErrorCode.UNSUPPORTED_VERSION))
    assert requested_version(connection.continue_negotiation(rejected)) == 0
    accepted = received(connection, api_versions_frame(2, 0, {ApiKey.METADATA: (0, 1)}))
    assert connection.continue_negotiation(accepted) is None
    assert connection.version(ApiKey.METADATA) == 1


def test_negotiation_ends_with_a_broker_that_rejects_every_version() -> None:
    connection = ClientConnection("me")
    request: EncodedRequest | None = connection.start_negotiation()
    rows = {ApiKey.API_VERSIONS: (0, 99)}
    for number, version in enumerate((5, 4, 3, 2, 1, 0), start=1):
        assert requested_version(request) == version
        rejected = received(connection, api_versions_frame(number, 0, rows, ErrorCode.UNSUPPORTED_VERSION))
        if version:
            request = connection.continue_negotiation(rejected)
    with pytest.raises(NegotiationError, match="UNSUPPORTED_VERSION"):
        connection.continue_negotiation(rejected)


def test_another_error_ends_the_negotiation() -> None:
    connection = ClientConnection("me")
    connection.start_negotiation()
    with pytest.raises(NegotiationError, match="INVALID_REQUEST") as raised:
        connection.continue_negotiation(received(connection, api_versions_frame(1, 4, {}, ErrorCode.INVALID_REQUEST)))
    assert raised.value.error_code == ErrorCode.INVALID_REQUEST


def test_the_software_is_named() -> None:
    """ApiVersions names the client software (KIP-511)."""
    request = ClientConnection("me", software_name="s", software_version="1").start_negotiation().frame
    header = decode_request_header(request, 4)
    assert decode(ApiVersionsRequest, request, 4, header.body_pos) == ApiVersionsRequest(
        client_software_name="s", client_software_version="1"
    )
