"""Frames and message headers, which surround the body of a request or response on a connection.

A frame is its size (int32, not counting itself), a header and a body. Flexible versions of an API have headers with
tagged fields (KIP-482), with two exceptions: the response to ApiVersions has the first header in every version, because
the client reads it before it knows the broker's versions (KIP-511), and a client id is always a classic string.
"""

from struct import Struct
from struct import error as StructError
from typing import NamedTuple

from protocol.apis import ALL_APIS, ApiKey
from protocol.errors import ErrorCode, MalformedError
from protocol.schema.primitives import Buffer
from protocol.varints import skip_tagged_fields

_INT32 = Struct(">i")
_REQUEST_HEADER = Struct(">hhih")
SIZE_BYTES = _INT32.size
MIN_RESPONSE_BYTES = 4  # a correlation id
_UNSUPPORTED_VERSION = ErrorCode.UNSUPPORTED_VERSION.to_bytes(2, "big")


class ParsedRequestHeader(NamedTuple):
    """A decoded request header; `body_pos` is the position of the request body in the frame."""

    api_key: int
    version: int
    correlation_id: int
    client_id: str | None
    body_pos: int


def has_flexible_request_header(api_key: int, version: int) -> bool:
    """Return whether a request has a header with tagged fields; False for an unknown API."""
    api = ALL_APIS.get(api_key)
    return api is not None and version >= api.flexible_from


def has_flexible_response_header(api_key: int, version: int) -> bool:
    """Return whether a response has a header with tagged fields; False for an unknown API."""
    return has_flexible_request_header(api_key, version) and api_key != ApiKey.API_VERSIONS


def encode_request_header(api_key: int, version: int, correlation_id: int, client_id: str | None) -> bytes:
    """Encode a request header without tagged fields."""
    raw = b"" if client_id is None else client_id.encode()
    size = -1 if client_id is None else len(raw)
    tags = b"\0" if has_flexible_request_header(api_key, version) else b""
    return _REQUEST_HEADER.pack(api_key, version, correlation_id, size) + raw + tags


def decode_request_header(buf: Buffer, pos: int = 0) -> ParsedRequestHeader:
    """Decode the request header at a position of a frame, of any API and version. Raises MalformedError."""
    view = memoryview(buf)
    try:
        api_key, version, correlation_id, size = _REQUEST_HEADER.unpack_from(view, pos)
        pos += _REQUEST_HEADER.size
        client_id = None
        if size != -1:
            end = pos + size
            if not pos <= end <= len(view):
                raise MalformedError(f"client id of {size} bytes")
            client_id = str(view[pos:end], "utf-8", "replace")
            pos = end
        if has_flexible_request_header(api_key, version):
            pos = skip_tagged_fields(view, pos)
    except (IndexError, StructError) as error:
        raise MalformedError("request header is truncated") from error
    return ParsedRequestHeader(api_key, version, correlation_id, client_id, pos)


def encode_response_header(api_key: int, version: int, correlation_id: int) -> bytes:
    """Encode a response header without tagged fields."""
    tags = b"\0" if has_flexible_response_header(api_key, version) else b""
    return _INT32.pack(correlation_id) + tags


def decode_response_header(buf: Buffer, api_key: int, version: int, pos: int = 0) -> tuple[int, int]:
    """Decode the response header at a position of a frame; returns (correlation id, position of the body).

    Raises MalformedError.
    """
    view = memoryview(buf)
    try:
        (correlation_id,) = _INT32.unpack_from(view, pos)
        pos += _INT32.size
        if has_flexible_response_header(api_key, version):
            pos = skip_tagged_fields(view, pos)
    except (IndexError, StructError) as error:
        raise MalformedError("response header is truncated") from error
    return correlation_id, pos


def response_version(frame: Buffer, body_pos: int, api_key: int, request_version: int) -> int:
    """Return the version of the response body in a frame.

    It is the version of the request, except that brokers respond in version 0 to an unknown version of ApiVersions
    (KIP-511).
    """
    # In all versions an ApiVersions response begins with its error code.
    if api_key == ApiKey.API_VERSIONS and frame[body_pos : body_pos + 2] == _UNSUPPORTED_VERSION:
        return 0
    return request_version


def encode_frame(header: bytes, body: bytes) -> bytes:
    """Encode a frame, including its size."""
    return _INT32.pack(len(header) + len(body)) + header + body


class FrameReader:
    """Splits a stream of bytes into frames."""

    def __init__(self, min_bytes: int, max_bytes: int) -> None:
        """Frames have at least `min_bytes` and at most `max_bytes`, not counting the size."""
        self._min_bytes = min_bytes
        self._max_bytes = max_bytes
        self._received = bytearray()

    def receive(self, data: Buffer) -> None:
        """Add bytes that have arrived on the connection."""
        self._received += data

    def next_frame(self) -> bytes | None:
        """Remove and return the next frame without its size; None if it has not arrived completely.

        Raises MalformedError for a size out of bounds. The rest of the connection cannot be read then.
        """
        if len(self._received) < SIZE_BYTES:
            return None
        (size,) = _INT32.unpack_from(self._received)
        if not self._min_bytes <= size <= self._max_bytes:
            raise MalformedError(f"frame of {size} bytes, where {self._min_bytes} to {self._max_bytes} are allowed")
        end = SIZE_BYTES + size
        if len(self._received) < end:
            return None
        frame = bytes(memoryview(self._received)[SIZE_BYTES:end])
        del self._received[:end]
        return frame
