"""Random messages with all values that their rows allow, preferably edge cases. A seed determines a message."""

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from random import Random
from typing import Any, TypeVar

import protocol.messages
from protocol.errors import ErrorCode
from protocol.messages.k83_share_state import DUE_MS_TAG
from protocol.schema.message import Message, Row, Struct, StructType, message_info
from protocol.schema.primitives import ZERO_UUID

M = TypeVar("M", bound=Message)

_BITS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}
_UINT16_MAX = (1 << 16) - 1
# No NaN, which is not equal to itself.
_FLOATS = (0.0, -0.0, 1.0, -1.5, 1024.0, 5e-324, 1.7976931348623157e308, float("inf"), float("-inf"))
_ALPHABET = "abz-_.09 äß€語🙂\x00"
# kio does not have those of Kafka 4.4.
_CODES = [int(code) for code in ErrorCode if code < ErrorCode.GROUP_DELETION_FAILED]
# Lengths around the point at which a compact length takes a second byte, and around the short-array tables.
_LENGTHS = (0, 1, 2, 5, 8, 9, 126, 127, 128, 300)


def all_messages() -> list[type[Message]]:
    """Return all message classes, sorted by name."""
    messages = set()
    for path in Path(protocol.messages.__path__[0]).glob("*.py"):
        module = import_module(f"protocol.messages.{path.stem}")
        messages |= {
            item
            for item in vars(module).values()
            if isinstance(item, StructType) and issubclass(item, Message) and item is not Message
        }
    return sorted(messages, key=lambda cls: cls.__name__)


def all_versions() -> Iterator[tuple[type[Message], int]]:
    for cls in all_messages():
        known = message_info(cls)
        for version in range(known.min_version, known.max_version + 1):
            yield cls, version


def random_message(cls: type[M], version: int, rng: Random) -> M:
    """Return a message with random values in the fields of a version; the others have their defaults."""
    return random_struct(cls, version, rng)


def random_struct(cls: type[Any], version: int, rng: Random) -> Any:
    struct: Struct = cls()
    for name, row in cls.__rows__.items():
        if row.is_in(version) and not (row.tag >= 0 and rng.random() < 0.4):
            setattr(struct, name, random_value(name, row, version, rng))
    return struct


def reset_own_fields(struct: Struct) -> None:
    """Reset the tagged fields that Kafka does not have, so that other encoders have all fields."""
    for name, row in struct.__class__.__rows__.items():
        value = getattr(struct, name)
        if row.tag == DUE_MS_TAG:
            setattr(struct, name, row.new_default())
        for element in value if isinstance(value, list) else [value]:
            if isinstance(element, Struct):
                reset_own_fields(element)


def random_value(name: str, row: Row, version: int, rng: Random) -> Any:
    if row.is_nullable_in(version) and rng.random() < 0.25:
        return None
    if not isinstance(row.type, list):
        return _element(name, row.type, version, rng)
    kind = row.type[0]
    length = rng.choice((0, 1, 1, 2, 3)) if rng.random() < 0.9 or isinstance(kind, StructType) else _length(rng)
    return [_element(name, kind, version, rng) for _ in range(length)]


def _element(name: str, kind: Any, version: int, rng: Random) -> Any:
    if isinstance(kind, StructType):
        return random_struct(kind, version, rng)
    if kind == "bool":
        return rng.random() < 0.5
    if kind == "string":
        return "".join(rng.choices(_ALPHABET, k=_length(rng)))
    if kind in ("bytes", "records"):
        return rng.randbytes(_length(rng))
    if kind == "uuid":
        return rng.choice((ZERO_UUID, rng.randbytes(16)))
    if kind == "float64":
        return rng.choice(_FLOATS) if rng.random() < 0.5 else rng.uniform(-1e6, 1e6)
    if kind == "uint16":
        return rng.choice((0, 1, _UINT16_MAX, rng.randint(0, _UINT16_MAX)))
    return _integer(name, kind, rng)


def _integer(name: str, kind: str, rng: Random) -> int:
    if name.endswith("error_code"):
        return rng.choice(_CODES)
    bits = _BITS[kind]
    if kind == "int64" and name.endswith("_time_ms"):
        # Other encoders store these as timedelta or datetime, which cannot represent every int64.
        bits = 44
    low, high = -(1 << bits - 1), (1 << bits - 1) - 1
    return rng.choice((0, -1, 1, low, high, rng.randint(low, high), rng.randint(0, 100)))


def _length(rng: Random) -> int:
    return rng.choice(_LENGTHS) if rng.random() < 0.15 else rng.randrange(6)
