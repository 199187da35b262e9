"""Frames, and headers by API and version."""

import pytest

from protocol.apis import APIS, ApiKey
from protocol.errors import MalformedError
from protocol.framing import (
    FrameReader,
    ParsedRequestHeader,
    decode_request_header,
    decode_response_header,
    encode_frame,
    encode_request_header,
    encode_response_header,
    has_flexible_request_header,
    has_flexible_response_header,
)
from protocol.messages.header import RequestHeader, ResponseHeader
from protocol.schema.codec import encode
from tests.unit.support.foreign_encoders import kio_class

FIRST_PRODUCE_VERSION = 3


def api_versions() -> list[tuple[int, int]]:
    return [
        (api.key, version)
        for api in APIS.values()
        for version in range(api.min_version, api.max_version + 1)
        if api.key is not ApiKey.PRODUCE or version >= FIRST_PRODUCE_VERSION
    ]


def test_every_header_is_the_one_that_kio_pairs_with_the_message() -> None:
    for key, version in api_versions():
        for kind, flexible in (
            ("request", has_flexible_request_header(key, version)),
            ("response", has_flexible_response_header(key, version)),
        ):
            kio_header = kio_class(f"{APIS[key].name}{kind.title()}", kind, version)
            assert kio_header.__header_schema__.__flexible__ == flexible, (key, version, kind)


@pytest.mark.parametrize("client_id", [None, "", "me", "語"])
def test_request_headers_are_those_of_the_rows(client_id: str | None) -> None:
    for version, header_version in ((8, 1), (9, 2)):
        ours = encode_request_header(ApiKey.METADATA, version, -5, client_id)
        rows = RequestHeader(request_api_key=3, request_api_version=version, correlation_id=-5, client_id=client_id)
        assert ours == encode(rows, header_version)
        assert decode_request_header(ours + b"body") == ParsedRequestHeader(3, version, -5, client_id, len(ours))
        assert decode_request_header(b"..." + ours, 3).body_pos == len(ours) + 3


def test_response_headers_are_those_of_the_rows() -> None:
    for version, header_version in ((8, 0), (9, 1)):
        ours = encode_response_header(ApiKey.METADATA, version, 7)
        assert ours == encode(ResponseHeader(correlation_id=7), header_version)
        assert decode_response_header(ours, ApiKey.METADATA, version) == (7, len(ours))


def test_a_response_to_api_versions_always_has_header_version_0() -> None:
    """KIP-511: a client reads the response before it knows the broker's versions."""
    assert encode_response_header(ApiKey.API_VERSIONS, 4, 7) == b"\0\0\0\7"
    assert encode_request_header(ApiKey.API_VERSIONS, 4, 7, None).endswith(b"\xff\xff\0")


def test_tags_of_a_header_are_stepped_over() -> None:
    header = b"\0\3\0\x0c\0\0\0\7\xff\xff" + b"\1\5\3abc"
    assert decode_request_header(header + b"body").body_pos == len(header)
    assert decode_response_header(b"\0\0\0\7\1\5\3abc", ApiKey.METADATA, 12) == (7, 10)


def test_an_unknown_api_is_read_without_tags() -> None:
    assert decode_request_header(b"\x03\xe7\0\0\0\0\0\1\0\1c") == ParsedRequestHeader(999, 0, 1, "c", 11)


@pytest.mark.parametrize("size", range(11))
def test_a_truncated_header_is_malformed(size: int) -> None:
    with pytest.raises(MalformedError):
        decode_request_header(encode_request_header(ApiKey.METADATA, 12, 1, "c")[:size])


@pytest.mark.parametrize("client_id", [b"\xff\xfe", b"\0\x09c", b"\x7f\xff"])
def test_a_bad_client_id_is_malformed(client_id: bytes) -> None:
    with pytest.raises(MalformedError):
        decode_request_header(b"\0\3\0\1\0\0\0\7" + client_id)


def test_invalid_utf_8_of_a_client_id_is_replaced() -> None:
    assert decode_request_header(b"\0\3\0\1\0\0\0\7\0\1\xff").client_id == "\ufffd"


def test_a_truncated_response_header_is_malformed() -> None:
    for header in (b"\0\0\0", b"\0\0\0\7", b"\0\0\0\7\1"):
        with pytest.raises(MalformedError):
            decode_response_header(header, ApiKey.METADATA, 12)


def test_a_frame_begins_with_its_size() -> None:
    assert encode_frame(b"head", b"body!") == b"\0\0\0\x09headbody!"


def test_frames_of_a_stream_in_any_pieces() -> None:
    frames = [b"abcd", b"x" * 300, b"efghi"]
    stream = b"".join(encode_frame(frame[:1], frame[1:]) for frame in frames)
    for size in (1, 2, 3, 7, 100, len(stream)):
        reader = FrameReader(4, 300)
        received = []
        for pos in range(0, len(stream), size):
            reader.receive(memoryview(stream)[pos : pos + size])
            while (frame := reader.next_frame()) is not None:
                received.append(frame)
        assert received == frames


@pytest.mark.parametrize("size", [-1, 3, 301, (1 << 31) - 1])
def test_a_frame_out_of_bounds_is_malformed(size: int) -> None:
    reader = FrameReader(4, 300)
    reader.receive(size.to_bytes(4, "big", signed=True))
    for _ in range(2):
        with pytest.raises(MalformedError, match=f"frame of {size} bytes"):
            reader.next_frame()


def test_an_empty_frame() -> None:
    reader = FrameReader(0, 300)
    reader.receive(bytes(4))
    assert reader.next_frame() == b""
    assert reader.next_frame() is None
