"""The primitive types of the wire: formats and default values. All other types are built from them (KIP-482)."""

from typing import Any

Buffer = bytes | bytearray | memoryview

ZERO_UUID = bytes(16)

# Types of fixed size, by the format characters of the `struct` module (big-endian). A uuid is its 16 raw bytes.
FIXED: dict[str, str] = {
    "bool": "?",
    "int8": "b",
    "int16": "h",
    "uint16": "H",
    "int32": "i",
    "uint32": "I",
    "int64": "q",
    "float64": "d",
    "uuid": "16s",
}

# Types that begin with their length, by the format of that length. In flexible versions it is a varint instead.
LENGTH_FORMATS: dict[str, str] = {"string": "h", "bytes": "i", "records": "i"}

DEFAULTS: dict[str, Any] = {
    "bool": False,
    "int8": 0,
    "int16": 0,
    "uint16": 0,
    "int32": 0,
    "uint32": 0,
    "int64": 0,
    "float64": 0.0,
    "uuid": ZERO_UUID,
    "string": "",
    "bytes": b"",
    "records": None,
}


def repeated(format: str, count: int) -> str:
    """Return the struct format of `count` values. A count before "16s" would belong to its number."""
    return f"{count}{format}" if len(format) == 1 else format * count
