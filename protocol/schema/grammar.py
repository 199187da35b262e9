"""The same messages as `construct` grammars, read from the same rows.

They are the reference that the generated code is held against in tests, and what tools take frames apart
with. They are slow; the broker never imports them.

A grammar builds from and parses to plain dicts with the fields of its version; `plain` makes one of a
message.
"""

from __future__ import annotations

from typing import Any

import construct

from protocol.schema.message import Message, Row, Struct, StructType, message_info
from protocol.schema.primitives import FIXED

_FIXED = {
    "bool": construct.Flag,
    "int8": construct.Int8sb,
    "int16": construct.Int16sb,
    "uint16": construct.Int16ub,
    "int32": construct.Int32sb,
    "uint32": construct.Int32ub,
    "int64": construct.Int64sb,
    "float64": construct.Float64b,
    "uuid": construct.Bytes(16),
}

# A compact length is written as one more than it is, so that zero is null (KIP-482).
_COMPACT_LENGTH = construct.ExprAdapter(
    construct.VarInt, lambda raw, context: raw - 1, lambda length, context: length + 1
)


def grammar(cls: type[Message], version: int) -> construct.Construct:
    """The grammar of a message in a version."""
    return _struct(cls, version, version >= message_info(cls).flexible_from)


def plain(value: Any, version: int) -> Any:
    """A message, or a value in one, as dicts and lists that hold the fields of one version."""
    if isinstance(value, Struct):
        rows = value.__class__.__rows__
        return {name: plain(getattr(value, name), version) for name, row in rows.items() if row.is_in(version)}
    if isinstance(value, list | tuple):
        return [plain(item, version) for item in value]
    if isinstance(value, memoryview | bytearray):
        return bytes(value)
    return value


class _Sized(construct.Construct):  # type: ignore[misc]
    """A length, then that many bytes; a length of -1 is null."""

    def __init__(self, length: construct.Construct, text: bool) -> None:
        super().__init__()
        self._length = length
        self._text = text

    def _parse(self, stream: Any, context: Any, path: str) -> str | bytes | None:
        size = self._length._parsereport(stream, context, path)
        if size < 0:
            return None
        raw: bytes = construct.stream_read(stream, size, path)
        return raw.decode(errors="replace") if self._text else raw

    def _build(self, value: str | bytes | None, stream: Any, context: Any, path: str) -> Any:
        raw = value.encode() if isinstance(value, str) else value
        self._length._build(-1 if raw is None else len(raw), stream, context, path)
        construct.stream_write(stream, raw or b"", len(raw or b""), path)
        return value


class _Array(construct.Construct):  # type: ignore[misc]
    """A count, then that many elements; a count of -1 is null."""

    def __init__(self, count: construct.Construct, element: construct.Construct) -> None:
        super().__init__()
        self._count = count
        self._element = element

    def _parse(self, stream: Any, context: Any, path: str) -> list[Any] | None:
        count = self._count._parsereport(stream, context, path)
        if count < 0:
            return None
        return [self._element._parsereport(stream, context, path) for _ in range(count)]

    def _build(self, values: list[Any] | None, stream: Any, context: Any, path: str) -> Any:
        self._count._build(-1 if values is None else len(values), stream, context, path)
        for value in values or ():
            self._element._build(value, stream, context, path)
        return values


class _Tagged(construct.Construct):  # type: ignore[misc]
    """A struct with its tagged fields, which are left out where they have their defaults (KIP-482)."""

    def __init__(self, body: construct.Construct, tags: dict[int, tuple[str, construct.Construct, Any]]) -> None:
        super().__init__()
        self._body = body
        self._tags = tags

    def _parse(self, stream: Any, context: Any, path: str) -> Any:
        found = self._body._parsereport(stream, context, path)
        found.update({name: default for name, _, default in self._tags.values()})
        for _ in range(construct.VarInt._parsereport(stream, context, path)):
            number = construct.VarInt._parsereport(stream, context, path)
            size = construct.VarInt._parsereport(stream, context, path)
            raw = construct.stream_read(stream, size, path)
            if number in self._tags:
                name, inner, _ = self._tags[number]
                found[name] = inner.parse(raw)
        return found

    def _build(self, value: Any, stream: Any, context: Any, path: str) -> Any:
        self._body._build(value, stream, context, path)
        present = [
            (number, inner.build(value[name]))
            for number, (name, inner, default) in sorted(self._tags.items())
            if value[name] != default
        ]
        construct.VarInt._build(len(present), stream, context, path)
        for number, raw in present:
            construct.VarInt._build(number, stream, context, path)
            construct.VarInt._build(len(raw), stream, context, path)
            construct.stream_write(stream, raw, len(raw), path)
        return value


def _struct(cls: StructType, version: int, flexible: bool) -> construct.Construct:
    rows = {name: row for name, row in cls.__rows__.items() if row.is_in(version)}
    body = construct.Struct(*(name / _value(row, version, flexible) for name, row in rows.items() if row.tag < 0))
    if not flexible:
        return body
    tags = {
        row.tag: (name, _value(row, version, flexible), plain(row.new_default(), version))
        for name, row in rows.items()
        if row.tag >= 0
    }
    return _Tagged(body, tags)


def _value(row: Row, version: int, flexible: bool) -> construct.Construct:
    flexible = flexible and row.flexible
    if isinstance(row.type, list):
        count = _COMPACT_LENGTH if flexible else construct.Int32sb
        return _Array(count, _element(row.type[0], version, flexible))
    if isinstance(row.type, StructType) and row.is_nullable_in(version):
        return _nullable(_struct(row.type, version, flexible))
    return _element(row.type, version, flexible)


def _element(kind: Any, version: int, flexible: bool) -> construct.Construct:
    if isinstance(kind, StructType):
        return _struct(kind, version, flexible)
    if kind in FIXED:
        return _FIXED[kind]
    if kind == "string":
        return _Sized(_COMPACT_LENGTH if flexible else construct.Int16sb, True)
    return _Sized(_COMPACT_LENGTH if flexible else construct.Int32sb, False)


def _nullable(inner: construct.Construct) -> construct.Construct:
    """KIP-893: a byte, below zero for null."""
    there = construct.Struct("there" / construct.Int8sb, "value" / construct.If(construct.this.there >= 0, inner))
    return construct.ExprAdapter(
        there,
        lambda found, context: found.value,
        lambda value, context: {"there": -1 if value is None else 1, "value": value},
    )
