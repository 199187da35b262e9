"""Unsigned varints, and the tagged fields that are built from them (KIP-482)."""

from protocol.errors import MalformedError
from protocol.limits import MAX_TAGGED_FIELDS

_ONE_BYTE = [bytes((value,)) for value in range(0x80)]


def decode_uvarint(buf: memoryview, pos: int) -> tuple[int, int]:
    """Decode an unsigned varint of at most 32 bits; returns (value, next position). Raises IndexError past the end."""
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


def encode_uvarint(value: int) -> bytes:
    """Encode an unsigned varint."""
    if value < 0x80:
        return _ONE_BYTE[value]
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def skip_tagged_fields(buf: memoryview, pos: int) -> int:
    """Return the position after a section of tagged fields, whatever their tags."""
    count, pos = decode_uvarint(buf, pos)
    if count > MAX_TAGGED_FIELDS:
        raise MalformedError(f"{count} tagged fields")
    end = len(buf)
    for _ in range(count):
        _, pos = decode_uvarint(buf, pos)
        size, pos = decode_uvarint(buf, pos)
        pos += size
        if pos > end:
            raise MalformedError("tagged field exceeds the frame")
    return pos
