"""The fields of a struct in one version of its message, in wire order; and the minimum sizes of values."""

from typing import Any, NamedTuple

from protocol.schema.message import Message, Row, StructType, message_info
from protocol.schema.primitives import FIXED, LENGTH_FORMATS

_FORMAT_SIZES = {"?": 1, "b": 1, "h": 2, "H": 2, "i": 4, "I": 4, "q": 8, "d": 8, "16s": 16, "B": 1, "x": 1}


class Field(NamedTuple):
    """A row in one version."""

    name: str
    row: Row
    nullable: bool
    flexible: bool


class StructLayout(NamedTuple):
    """The fields of a struct in one version: in wire order, tagged by tag, not in the version."""

    plain: list[Field]
    tagged: list[Field]
    absent: list[Field]


def struct_layout(cls: StructType, version: int, flexible: bool) -> StructLayout:
    layout = StructLayout([], [], [])
    for name, row in cls.__rows__.items():
        field = Field(name, row, row.is_nullable_in(version), flexible and row.flexible)
        if not row.is_in(version):
            layout.absent.append(field)
        elif row.tag >= 0:
            layout.tagged.append(field)
        else:
            layout.plain.append(field)
    layout.tagged.sort(key=lambda field: field.row.tag)
    return layout


def is_flexible_version(cls: type[Message], version: int) -> bool:
    """Return whether a version of a message is flexible. Raises ValueError if the message does not have the version."""
    info = message_info(cls)
    if not info.min_version <= version <= info.max_version:
        raise ValueError(f"{cls.__name__} has no version {version}")
    return version >= info.flexible_from


def format_size(format: str) -> int:
    """Return the bytes of a format character of the `struct` module."""
    return _FORMAT_SIZES[format]


def min_encoded_size(kind: Any, nullable: bool, version: int, flexible: bool) -> int:
    """Return the minimum number of bytes of a value of a type. Decoders use it to check the counts of arrays."""
    if isinstance(kind, list):
        return 1 if flexible else 4
    if isinstance(kind, StructType):
        return 1 if nullable else _min_struct_size(kind, version, flexible)
    if kind in FIXED:
        return format_size(FIXED[kind])
    return 1 if flexible else format_size(LENGTH_FORMATS[kind])


def _min_struct_size(cls: StructType, version: int, flexible: bool) -> int:
    fields = struct_layout(cls, version, flexible).plain
    size = sum(min_encoded_size(field.row.type, field.nullable, version, field.flexible) for field in fields)
    return size + 1 if flexible else size
