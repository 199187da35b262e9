"""Captured bytes, split into frames, each parsed with the grammar of its message."""

import base64
import binascii
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from struct import Struct
from typing import NamedTuple

from kbroker.cli.common.errors import CliError, exception_text, usage_error
from protocol.apis import ALL_APIS, ApiKey
from protocol.framing import SIZE_BYTES, has_flexible_request_header, has_flexible_response_header, response_version
from protocol.messages import message_classes
from protocol.messages.header import RequestHeader, ResponseHeader
from protocol.schema.grammar import FieldError, ParsedField, parse_fields
from protocol.schema.message import Message, message_info

_HEX = re.compile(rb"(?:0x)?(?:[0-9a-fA-F]{2})+")
_SEPARATORS = re.compile(rb"[\s:]+")


def read_capture(text: str | None, file: str | None) -> bytes:
    """Return the bytes of the argument, or of the file; by default, of standard input."""
    if text is not None and file is not None:
        raise usage_error("FRAMES and --file exclude each other")
    if text is not None and text != "-":
        return read_text(text)
    if text is None and file is None and sys.stdin.isatty():
        raise usage_error("pass frames, a file or standard input")
    try:
        data = sys.stdin.buffer.read() if file in (None, "-") else Path(file or "").read_bytes()
    except OSError as error:
        raise CliError(exception_text(error)) from None
    if not data:
        raise CliError("no bytes to read")
    decoded = _decode(data)
    return data if decoded is None else decoded


def read_text(text: str) -> bytes:
    """Decode hex or base64. Hex may have white space or colons between the bytes."""
    data = _decode(text.encode(errors="replace"))
    if not data:
        raise usage_error("frames must be hex or base64")
    return data


def _decode(data: bytes) -> bytes | None:
    text = _SEPARATORS.sub(b"", data)
    if _HEX.fullmatch(text):
        return bytes.fromhex(text.decode().removeprefix("0x"))
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        return None


_API_KEY_AND_VERSION = Struct(">hh")


class FrameDamage(NamedTuple):
    """Damage in a frame: the path of the field, and what was expected there."""

    position: int
    path: tuple[str, ...]
    reason: str


class ResponseType(NamedTuple):
    """The API and version of the request that a response belongs to."""

    api_key: int
    version: int


# Returns the type of a response by its correlation id; None if it belongs to no request.
ResponseTypes = Callable[[int], ResponseType | None]


@dataclass
class ParsedFrame:
    """One frame. Positions are those in the capture. `size`: the frame's size field; None if it was not captured."""

    start: int
    size: int | None
    kind: str  # "request" or "response"
    api_key: int | None = None
    version: int | None = None
    header: list[ParsedField] = field(default_factory=list)
    body: list[ParsedField] = field(default_factory=list)
    damage: FrameDamage | None = None

    @property
    def api(self) -> str:
        """The name of the API as in Kafka's message definitions, or of its key."""
        if self.api_key is None:
            return "unknown"
        if self.api_key in ALL_APIS:
            return ALL_APIS[self.api_key].name
        return ApiKey(self.api_key).name if self.api_key in ApiKey.__members__.values() else str(self.api_key)

    @property
    def correlation_id(self) -> int | None:
        return next((item.value for item in self.header if item.path == ("correlation_id",)), None)


def parse_capture(data: bytes, response_types: ResponseTypes | None) -> list[ParsedFrame]:
    """Parse all frames; `response_types`: None for requests.

    If the sizes in a capture are inconsistent, it is damaged or is one frame without its size. The interpretation
    without damage, or else with more fields, is returned.
    """
    with_sizes = _parse_with_sizes(data, response_types)
    if with_sizes is not None and with_sizes[-1].size == len(data) - with_sizes[-1].start - SIZE_BYTES:
        return with_sizes
    without_size = [_parse_frame(data, 0, None, len(data), response_types)]
    return max(
        filter(None, (with_sizes, without_size)),
        key=lambda frames: (
            all(frame.damage is None for frame in frames),
            sum(len(frame.header) + len(frame.body) for frame in frames),
        ),
    )


def response_types_of(requests: list[ParsedFrame]) -> Mapping[int, ResponseType]:
    """Return the types of the responses to requests, by correlation id."""
    return {
        request.correlation_id: ResponseType(request.api_key, request.version)
        for request in requests
        if request.correlation_id is not None and request.api_key is not None and request.version is not None
    }


def _parse_with_sizes(data: bytes, response_types: ResponseTypes | None) -> list[ParsedFrame] | None:
    frames: list[ParsedFrame] = []
    position = 0
    while position < len(data):
        size = int.from_bytes(data[position : position + SIZE_BYTES], "big", signed=True)
        content = position + SIZE_BYTES
        if len(data) < content or size < 0:
            if not frames:
                return None
            reason = f"size {size}" if len(data) >= content else f"{SIZE_BYTES} bytes of a frame's size expected"
            damage = FrameDamage(position, ("size",), reason)
            return [*frames, ParsedFrame(position, size, frames[0].kind, damage=damage)]
        end = content + size
        frame = _parse_frame(data[:end], content, size, min(end, len(data)), response_types)
        frames.append(frame)
        position = end
    return frames


def _parse_frame(
    data: bytes, content: int, size: int | None, end: int, response_types: ResponseTypes | None
) -> ParsedFrame:
    start = content if size is None else content - SIZE_BYTES
    frame = ParsedFrame(start, size, "request" if response_types is None else "response")
    part = "header"
    try:
        if response_types is None:
            position = _parse_request_header(frame, data, content)
        else:
            position = _parse_response_header(frame, data, content, response_types)
        part = "body"
        body_end = parse_fields(_message_class(frame, position), frame.version or 0, data, position, frame.body.append)
        if body_end != end:
            raise FieldError("", body_end, f"{end - body_end} bytes remain after the end of the message")
    except FieldError as error:
        frame.damage = FrameDamage(error.position, (part, *error.field_path), error.reason)
    return frame


def _parse_request_header(frame: ParsedFrame, data: bytes, position: int) -> int:
    flexible = False
    if len(data) >= position + _API_KEY_AND_VERSION.size:
        frame.api_key, frame.version = _API_KEY_AND_VERSION.unpack_from(data, position)
        flexible = has_flexible_request_header(*_API_KEY_AND_VERSION.unpack_from(data, position))
    return parse_fields(RequestHeader, 2 if flexible else 1, data, position, frame.header.append)


def _parse_response_header(frame: ParsedFrame, data: bytes, start: int, response_types: ResponseTypes) -> int:
    correlation_id = int.from_bytes(data[start : start + 4], "big", signed=True)
    response_type = response_types(correlation_id)
    flexible = response_type is not None and has_flexible_response_header(*response_type)
    position = parse_fields(ResponseHeader, 1 if flexible else 0, data, start, frame.header.append)
    if response_type is None:
        raise FieldError("", start, f"no request has the correlation id {correlation_id}")
    frame.api_key = response_type.api_key
    frame.version = response_version(data, position, *response_type)
    return position


def _message_class(frame: ParsedFrame, position: int) -> type[Message]:
    """Raise FieldError for an API or version whose fields are not known."""
    assert frame.api_key is not None
    if frame.api_key not in ALL_APIS:
        raise FieldError("", position, f"kbroker does not know the fields of API {frame.api}")
    cls = message_classes(frame.api_key)[0 if frame.kind == "request" else 1]
    info = message_info(cls)
    if not info.min_version <= (frame.version or 0) <= info.max_version:
        known = f"{info.min_version} to {info.max_version}"
        raise FieldError("", position, f"kbroker has {frame.api} in versions {known}, not {frame.version}")
    return cls
