"""Frames: 4 bytes (big-endian) with the length of a JSON header, the header, and a body of header["body"] bytes."""

import json
import os
from collections.abc import Mapping, Sequence
from struct import Struct
from typing import Any

_LENGTH = Struct(">I")
MAX_HEADER_BYTES = 1 << 20
# The most buffers that one system call writes.
_MAX_BUFFERS = 512

Buffers = Sequence[bytes | bytearray | memoryview]


def read_frame(fd: int) -> dict[str, Any] | None:
    """Return the header of the next frame without a body; None at the end of the input. Raises ValueError."""
    prefix = _read(fd, _LENGTH.size)
    if prefix is None:
        return None
    (length,) = _LENGTH.unpack(prefix)
    if length > MAX_HEADER_BYTES:
        raise ValueError(f"a frame with a header of {length} bytes")
    text = _read(fd, length)
    if text is None:
        return None
    header = json.loads(text)
    if not isinstance(header, dict):
        raise ValueError("a frame without a JSON object")
    return header


def write_frame(fd: int, header: Mapping[str, Any], body: Buffers = ()) -> None:
    """Write a frame. Raises OSError."""
    size = sum(map(len, body))
    text = json.dumps({**header, "body": size} if size else header).encode()
    buffers = [memoryview(_LENGTH.pack(len(text)) + text), *(memoryview(buffer) for buffer in body)]
    while buffers:
        written = os.writev(fd, buffers[:_MAX_BUFFERS])
        while buffers and written >= len(buffers[0]):
            written -= len(buffers.pop(0))
        if written:
            buffers[0] = buffers[0][written:]


def _read(fd: int, size: int) -> bytes | None:
    parts = []
    while size:
        part = os.read(fd, size)
        if not part:
            return None
        parts.append(part)
        size -= len(part)
    return b"".join(parts)
