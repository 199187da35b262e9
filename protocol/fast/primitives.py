"""Decoders and encoders of primitive types, for the hand-written codecs of Produce and Fetch."""

from struct import Struct
from typing import NoReturn

from protocol.errors import MalformedError, ManyElements
from protocol.limits import MAX_ELEMENTS_AT_ONCE, MAX_REQUEST_ELEMENTS, too_many_elements
from protocol.varints import decode_uvarint, encode_uvarint

I16 = Struct(">h")
U16 = Struct(">H")
I32 = Struct(">i")


def slice_bytes(buf: memoryview, pos: int, size: int) -> memoryview:
    """Return a slice of the frame. Raises MalformedError if it exceeds the frame."""
    if size < 0 or pos + size > len(buf):
        raise MalformedError(f"field of {size} bytes exceeds the frame")
    return buf[pos : pos + size]


def decode_string(buf: memoryview, pos: int, *, flexible: bool) -> tuple[str | None, int]:
    """Decode a nullable string. Invalid UTF-8 is replaced.

    A string is compact in flexible versions; otherwise it has a 16-bit length.
    """
    if flexible:
        size, pos = decode_uvarint(buf, pos)
        size -= 1
    else:
        size = I16.unpack_from(buf, pos)[0]
        pos += 2
    if size == -1:
        return None, pos
    end = pos + size
    if size < 0 or end > len(buf):
        raise MalformedError(f"field of {size} bytes exceeds the frame")
    return str(buf[pos:end], "utf-8", "replace"), end


def no_pause() -> None:
    """The `pause` of a decoder that decodes everything at once."""


def refuse_many_elements() -> NoReturn:
    """The `pause` of a decoder that decodes at most MAX_ELEMENTS_AT_ONCE elements."""
    raise ManyElements(too_many_elements(MAX_ELEMENTS_AT_ONCE))


def refuse_count(count: int, left: int) -> NoReturn:
    """Raise the error for an array that is null, exceeds the bytes that are left, or has too many elements."""
    if not 0 <= count <= left:
        raise MalformedError(f"array of {count} elements in {left} bytes")
    raise MalformedError(too_many_elements(MAX_REQUEST_ELEMENTS))


def deduct(remaining: int, count: int, left: int) -> int:
    """Return how many more elements the request may have after an array of `count`, for which `left` bytes are left."""
    if not 0 <= count <= left or count > remaining:
        refuse_count(count, left)
    return remaining - count


def encode_compact_string(text: str | None) -> bytes:
    if text is None:
        return b"\0"
    raw = text.encode()
    return encode_uvarint(len(raw) + 1) + raw


def encode_string(text: str | None) -> bytes:
    if text is None:
        return b"\xff\xff"
    raw = text.encode()
    return U16.pack(len(raw)) + raw
