"""What is around a message: the size of a frame, the headers of requests and responses.

A frame is its size (int32, itself not counted), a header, a body. Which header goes with a body is a
matter of the API and its version (KIP-482): flexible versions have tagged fields in it, but ApiVersions
answers with the first header always (KIP-511), and a client id is a classic string always.
"""

from __future__ import annotations

from struct import Struct
from struct import error as StructError
from typing import NamedTuple

from protocol.apis import APIS, ApiKey
from protocol.errors import MalformedError
from protocol.schema.primitives import Buffer
from protocol.varints import skip_tagged_fields

_SIZE = Struct(">i")
_REQUEST = Struct(">hhih")


class RequestStart(NamedTuple):
    """A decoded request header; `body` is the position of what follows it."""

    api_key: int
    version: int
    correlation_id: int
    client_id: str | None
    body: int


def is_flexible(api_key: int, version: int) -> bool:
    """Whether a request has the header with tagged fields; not for an API that is not known."""
    api = APIS.get(api_key)
    return api is not None and version >= api.flexible_from


def decode_request_header(buf: Buffer, pos: int = 0) -> RequestStart:
    """The header at a position of a frame, whatever API and version it names. Raises MalformedError."""
    view = memoryview(buf)
    try:
        api_key, version, correlation_id, size = _REQUEST.unpack_from(view, pos)
        pos += _REQUEST.size
        client_id = None
        if size != -1:
            end = pos + size
            if not pos <= end <= len(view):
                raise MalformedError(f"client id of {size} bytes")
            client_id = str(view[pos:end], "utf-8", "replace")
            pos = end
        if is_flexible(api_key, version):
            pos = skip_tagged_fields(view, pos)
    except (IndexError, StructError) as error:
        raise MalformedError("request header is truncated") from error
    return RequestStart(api_key, version, correlation_id, client_id, pos)


def encode_request_header(api_key: int, version: int, correlation_id: int, client_id: str | None) -> bytes:
    """The header of a request that this process sends; no tagged fields."""
    raw = b"" if client_id is None else client_id.encode()
    size = -1 if client_id is None else len(raw)
    tags = b"\0" if is_flexible(api_key, version) else b""
    return _REQUEST.pack(api_key, version, correlation_id, size) + raw + tags


def has_tagged_response_header(api_key: int, version: int) -> bool:
    return is_flexible(api_key, version) and api_key != ApiKey.API_VERSIONS


def encode_response_header(api_key: int, version: int, correlation_id: int) -> bytes:
    tags = b"\0" if has_tagged_response_header(api_key, version) else b""
    return _SIZE.pack(correlation_id) + tags


def decode_response_header(buf: Buffer, api_key: int, version: int, pos: int = 0) -> tuple[int, int]:
    """(correlation id, position of the body). Raises MalformedError."""
    view = memoryview(buf)
    try:
        (correlation_id,) = _SIZE.unpack_from(view, pos)
        pos += 4
        if has_tagged_response_header(api_key, version):
            pos = skip_tagged_fields(view, pos)
    except (IndexError, StructError) as error:
        raise MalformedError("response header is truncated") from error
    return correlation_id, pos


def frame(header: bytes, body: bytes) -> bytes:
    """A whole frame, its size first."""
    return _SIZE.pack(len(header) + len(body)) + header + body
