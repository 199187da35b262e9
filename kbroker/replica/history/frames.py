"""The frames between the broker and its history process (pure).

A frame is the length of its header in 4 bytes (big-endian), the header (a JSON object), and a body of as many bytes as
the header's "body" says. kbroker/archive/history is the other side.
"""

import json
from collections.abc import Mapping
from struct import Struct
from typing import Any, NamedTuple

_LENGTH = Struct(">I")
MAX_HEADER_BYTES = 16 << 20
MAX_BODY_BYTES = 1 << 30


class Frame(NamedTuple):
    header: dict[str, Any]
    body: bytes


def encode_frame(header: Mapping[str, Any], body: bytes = b"") -> bytes:
    encoded = json.dumps({**header, "body": len(body)} if body else header).encode()
    return _LENGTH.pack(len(encoded)) + encoded + body


class FrameAssembler:
    """Assembles the frames of a stream of bytes."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0
        # What comes next: a length, a header of `_header_bytes`, or the body of `_header`.
        self._header_bytes = 0
        self._header: dict[str, Any] | None = None

    def feed(self, data: bytes) -> list[Frame]:
        """Add bytes, and return the frames that they complete. Raises ValueError for what is not a frame."""
        self._parts.append(data)
        self._size += len(data)
        frames = []
        while self._size >= (wanted := self._wanted()):
            part = self._take(wanted)
            if self._header is not None:
                frames.append(Frame(self._header, part))
                self._header = None
            elif not self._header_bytes:
                (self._header_bytes,) = _LENGTH.unpack(part)
                if not 0 < self._header_bytes <= MAX_HEADER_BYTES:
                    raise ValueError(f"a header of {self._header_bytes} bytes")
            else:
                self._header_bytes = 0
                self._header = json.loads(part)
                size = self._header.get("body", 0) if isinstance(self._header, dict) else None
                if type(size) is not int or not 0 <= size <= MAX_BODY_BYTES:
                    raise ValueError(f"a header with a body of {size!r} bytes")
        return frames

    def _wanted(self) -> int:
        if self._header is not None:
            return int(self._header.get("body", 0))
        return self._header_bytes or _LENGTH.size

    def _take(self, size: int) -> bytes:
        data = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        rest = data[size:]
        self._parts = [rest] if rest else []
        self._size = len(rest)
        return data[:size] if rest else data
