"""The few primitives that the hand-written Produce and Fetch paths share."""

from struct import Struct

from protocol.errors import MalformedError
from protocol.limits import MAX_REQUEST_ELEMENTS, too_many_elements
from protocol.varints import decode_uvarint, encode_uvarint

I16 = Struct(">h")
U16 = Struct(">H")
I32 = Struct(">i")


def take(buf: memoryview, pos: int, size: int) -> memoryview:
    """A slice that is wholly inside the frame, or MalformedError."""
    if size < 0 or pos + size > len(buf):
        raise MalformedError(f"field of {size} bytes exceeds the frame")
    return buf[pos : pos + size]


def take_string(buf: memoryview, pos: int, *, flexible: bool) -> tuple[str | None, int]:
    """A nullable string: compact in flexible versions, else with a 16-bit length. What is no UTF-8 is replaced."""
    if flexible:
        size, pos = decode_uvarint(buf, pos)
        size -= 1
    else:
        size = I16.unpack_from(buf, pos)[0]
        pos += 2
    if size == -1:
        return None, pos
    return str(take(buf, pos, size), "utf-8", "replace"), pos + size


def take_count(buf: memoryview, pos: int, *, flexible: bool) -> tuple[int, int]:
    """An array's count, which may not be null and may not exceed the bytes that are left."""
    if flexible:
        count, pos = decode_uvarint(buf, pos)
        count -= 1
    else:
        count = I32.unpack_from(buf, pos)[0]
        pos += 4
    if count < 0 or count > len(buf) - pos:
        raise MalformedError(f"array of {count} elements in {len(buf) - pos} bytes")
    return count, pos


def less(room: int, count: int) -> int:
    """What is left of the elements that a request may hold."""
    if count > room:
        raise MalformedError(too_many_elements(MAX_REQUEST_ELEMENTS))
    return room - count


def compact_string(text: str | None) -> bytes:
    if text is None:
        return b"\0"
    raw = text.encode()
    return encode_uvarint(len(raw) + 1) + raw


def classic_string(text: str | None) -> bytes:
    if text is None:
        return b"\xff\xff"
    raw = text.encode()
    return U16.pack(len(raw)) + raw
