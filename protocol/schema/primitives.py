"""The primitive types of the wire as a table; everything else is built from them (KIP-482)."""

from __future__ import annotations

from typing import Any

Buffer = bytes | bytearray | memoryview

ZERO_UUID = bytes(16)

# Types of fixed size: their format characters of `struct`, big-endian. A uuid is its 16 raw bytes.
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

# Types that begin with their length: the format of the classic length. In flexible versions it is a varint.
LENGTH_FORMATS: dict[str, str] = {"string": "h", "bytes": "i", "records": "i"}

# What a field is when nothing is said.
INITIAL: dict[str, Any] = {
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
