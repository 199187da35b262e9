"""The few primitives that the hand-written Produce and Fetch paths share."""

from struct import Struct

from protocol.errors import MalformedError

I16 = Struct(">h")
U16 = Struct(">H")
I32 = Struct(">i")

# An element may take one byte on the wire and a hundred in memory, so the bytes of a frame alone are no bound of what
# decoding it costs: the arrays of one message may have this many elements in all, and a struct this many tags. Who asks
# may not make others wait for long either, so a request may have less; least where each of its elements is much work
# (the class keyword `elements` of such messages).
MAX_ELEMENTS = 250_000
MAX_REQUESTED = 100_000
FEW_REQUESTED = 10_000
MAX_TAGS = 100


def too_many(bound: int) -> str:
    return f"more than {bound} elements"


def uvarint(buf: memoryview, pos: int) -> tuple[int, int]:
    """Read an unsigned varint of at most 32 bits; gives (value, next position). IndexError past the end."""
    value = buf[pos]
    pos += 1
    if value < 0x80:
        return value, pos
    value &= 0x7F
    shift = 7
    while True:
        byte = buf[pos]
        pos += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, pos
        shift += 7
        if shift > 28:
            raise MalformedError("unsigned varint longer than 5 bytes")


def put_uvarint(value: int) -> bytes:
    """Encode an unsigned varint."""
    if value < 0x80:
        return bytes((value,))
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def skip_tags(buf: memoryview, pos: int) -> int:
    """Step over a tagged-field section (KIP-482); a tag of unknown number is no error."""
    count, pos = uvarint(buf, pos)
    if count > MAX_TAGS:
        raise MalformedError(f"{count} tagged fields")
    end = len(buf)
    for _ in range(count):
        _, pos = uvarint(buf, pos)
        size, pos = uvarint(buf, pos)
        pos += size
        if pos > end:
            raise MalformedError("tagged field exceeds the frame")
    return pos


def take(buf: memoryview, pos: int, size: int) -> memoryview:
    """A slice that is wholly inside the frame, or MalformedError."""
    if size < 0 or pos + size > len(buf):
        raise MalformedError(f"field of {size} bytes exceeds the frame")
    return buf[pos : pos + size]


def take_string(buf: memoryview, pos: int, *, flexible: bool) -> tuple[str | None, int]:
    """A nullable string: compact in flexible versions, else with a 16-bit length. What is no UTF-8 is replaced."""
    if flexible:
        size, pos = uvarint(buf, pos)
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
        count, pos = uvarint(buf, pos)
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
        raise MalformedError(too_many(MAX_REQUESTED))
    return room - count


def compact_string(text: str | None) -> bytes:
    if text is None:
        return b"\0"
    raw = text.encode()
    return put_uvarint(len(raw) + 1) + raw


def classic_string(text: str | None) -> bytes:
    if text is None:
        return b"\xff\xff"
    raw = text.encode()
    return U16.pack(len(raw)) + raw
