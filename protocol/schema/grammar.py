"""Messages as grammars of the library `construct`, made from the same rows as the generated functions.

Tests compare the generated functions with them, and `kbroker tools frame` shows frames with them. They are slow; the
broker never imports them.

A grammar parses to plain dicts with the fields of its version and builds from them; `plain` converts a message.
`parse_fields` reports every field with its position, and for a damaged message the damaged field and the reason.
"""

from collections.abc import Callable
from io import BytesIO
from typing import Any, NamedTuple

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
_MAX_UVARINT_BYTES = 5
_PATH_SEPARATOR = " -> "


class ParsedField(NamedTuple):
    """A field of a parsed message.

    path: the names of the structs around it and its own, elements of arrays as "[0]".
    kind: its primitive type; "array" (value: the number of elements), "struct" (null) or "tag" (unknown, as bytes).
    start, end: its positions; those of an array's count for an array.
    """

    path: tuple[str, ...]
    kind: str
    value: Any
    start: int
    end: int


class FieldError(construct.ConstructError):  # type: ignore[misc]
    """A field that cannot be parsed, at a position."""

    def __init__(self, path: str, position: int, reason: str) -> None:
        super().__init__(reason)
        self.field_path = _split(path)
        self.position = position
        self.reason = reason


def grammar(cls: type[Message], version: int) -> construct.Construct:
    """Return the grammar of a message in a version."""
    return _struct(cls, version, version >= message_info(cls).flexible_from)


def plain(value: Any, version: int) -> Any:
    """Convert a message, or a value in one, to dicts and lists with the fields of one version."""
    if isinstance(value, Struct):
        rows = value.__class__.__rows__
        return {name: plain(getattr(value, name), version) for name, row in rows.items() if row.is_in(version)}
    if isinstance(value, list | tuple):
        return [plain(item, version) for item in value]
    if isinstance(value, memoryview | bytearray):
        return bytes(value)
    return value


def parse_fields(
    cls: type[Message], version: int, data: bytes, position: int, on_field: Callable[[ParsedField], None]
) -> int:
    """Parse the message at a position of `data`; returns the position of its end.

    Calls `on_field` for each field in the order of the bytes. Raises FieldError, after the fields before it.
    """
    stream = BytesIO(data)
    stream.seek(position)
    grammar(cls, version).parse_stream(stream, on_field=on_field)
    return stream.tell()


def _split(path: str) -> tuple[str, ...]:
    # Remove "(parsing)", with which construct begins a path.
    return tuple(path.split(_PATH_SEPARATOR)[1:])


def _read(stream: BytesIO, size: int, path: str) -> bytes:
    start = stream.tell()
    data = stream.read(size)
    if len(data) < size:
        raise FieldError(path, start, f"{size} bytes expected, {len(data)} remain")
    return data


def _report(context: Any, path: str, kind: str, value: Any, start: int, stream: BytesIO) -> None:
    on_field = context._params.get("on_field")
    if on_field is not None:
        on_field(ParsedField(_split(path), kind, value, start, stream.tell()))


class _Fixed(construct.Construct):  # type: ignore[misc]
    """A value of fixed size."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self._kind = kind
        self._value = _FIXED[kind]

    def _parse(self, stream: Any, context: Any, path: str) -> Any:
        start = stream.tell()
        value = self._value.parse(_read(stream, self._value.sizeof(), path))
        _report(context, path, self._kind, value, start, stream)
        return value

    def _build(self, value: Any, stream: Any, context: Any, path: str) -> Any:
        return self._value._build(value, stream, context, path)


class _Uvarint(construct.Construct):  # type: ignore[misc]
    """An unsigned varint of at most 32 bits."""

    def _parse(self, stream: Any, context: Any, path: str) -> int:
        start = stream.tell()
        value = 0
        for shift in range(0, 7 * _MAX_UVARINT_BYTES, 7):
            [byte] = _read(stream, 1, path)
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
        raise FieldError(path, start, f"unsigned varint longer than {_MAX_UVARINT_BYTES} bytes")

    def _build(self, value: int, stream: Any, context: Any, path: str) -> Any:
        return construct.VarInt._build(value, stream, context, path)


_UVARINT = _Uvarint()


class _Length(construct.Construct):  # type: ignore[misc]
    """The length of a string or the count of an array, -1 for null. `compact`: one more, as a varint (KIP-482)."""

    def __init__(self, classic: construct.Construct, compact: bool, nullable: bool) -> None:
        super().__init__()
        self._classic = classic
        self._compact = compact
        self._nullable = nullable

    def _parse(self, stream: Any, context: Any, path: str) -> int:
        start = stream.tell()
        if self._compact:
            length = _UVARINT._parse(stream, context, path) - 1
        else:
            length = self._classic.parse(_read(stream, self._classic.sizeof(), path))
        if length < -1 or (length == -1 and not self._nullable):
            raise FieldError(path, start, f"length {length}" if length < -1 else "null in a field that is not nullable")
        return length

    def _build(self, length: int, stream: Any, context: Any, path: str) -> Any:
        if self._compact:
            return _UVARINT._build(length + 1, stream, context, path)
        return self._classic._build(length, stream, context, path)


class _Sized(construct.Construct):  # type: ignore[misc]
    """A length, followed by the bytes of a string, bytes or records."""

    def __init__(self, kind: str, compact: bool, nullable: bool) -> None:
        super().__init__()
        self._kind = kind
        self._length = _Length(construct.Int16sb if kind == "string" else construct.Int32sb, compact, nullable)

    def _parse(self, stream: Any, context: Any, path: str) -> str | bytes | None:
        start = stream.tell()
        size = self._length._parse(stream, context, path)
        value: str | bytes | None = None
        if size >= 0:
            raw = _read(stream, size, path)
            value = raw.decode(errors="replace") if self._kind == "string" else raw
        _report(context, path, self._kind, value, start, stream)
        return value

    def _build(self, value: str | bytes | None, stream: Any, context: Any, path: str) -> Any:
        raw = value.encode() if isinstance(value, str) else value
        self._length._build(-1 if raw is None else len(raw), stream, context, path)
        construct.stream_write(stream, raw or b"", len(raw or b""), path)
        return value


class _Array(construct.Construct):  # type: ignore[misc]
    """A count, followed by the elements."""

    def __init__(self, element: construct.Construct, compact: bool, nullable: bool) -> None:
        super().__init__()
        self._count = _Length(construct.Int32sb, compact, nullable)
        self._element = element

    def _parse(self, stream: Any, context: Any, path: str) -> list[Any] | None:
        start = stream.tell()
        count = self._count._parse(stream, context, path)
        _report(context, path, "array", None if count < 0 else count, start, stream)
        if count < 0:
            return None
        remaining = len(stream.getbuffer()) - stream.tell()
        if count > remaining:
            raise FieldError(path, start, f"{count} elements in {remaining} bytes")
        return [
            self._element._parsereport(stream, context, f"{path}{_PATH_SEPARATOR}[{index}]") for index in range(count)
        ]

    def _build(self, values: list[Any] | None, stream: Any, context: Any, path: str) -> Any:
        self._count._build(-1 if values is None else len(values), stream, context, path)
        for value in values or ():
            self._element._build(value, stream, context, path)
        return values


class _Nullable(construct.Construct):  # type: ignore[misc]
    """A struct after a byte that is negative for null (KIP-893); 0 for null in a tagged field."""

    def __init__(self, struct: construct.Construct, is_tagged: bool) -> None:
        super().__init__()
        self._struct = struct
        self._is_tagged = is_tagged

    def _parse(self, stream: Any, context: Any, path: str) -> Any:
        start = stream.tell()
        [byte] = _read(stream, 1, path)
        if byte != 0 if self._is_tagged else byte < 0x80:
            return self._struct._parsereport(stream, context, path)
        _report(context, path, "struct", None, start, stream)
        return None

    def _build(self, value: Any, stream: Any, context: Any, path: str) -> Any:
        null = 0 if self._is_tagged else -1
        construct.Int8sb._build(null if value is None else 1, stream, context, path)
        if value is not None:
            self._struct._build(value, stream, context, path)
        return value


class _Tagged(construct.Construct):  # type: ignore[misc]
    """A struct with its tagged fields, which are omitted if they have their defaults (KIP-482)."""

    def __init__(self, body: construct.Construct, tags: dict[int, tuple[str, construct.Construct, Any]]) -> None:
        super().__init__()
        self._body = body
        self._tags = tags

    def _parse(self, stream: Any, context: Any, path: str) -> Any:
        values = self._body._parsereport(stream, context, path)
        values.update({name: default for name, _, default in self._tags.values()})
        tags_path = f"{path}{_PATH_SEPARATOR}tagged fields"
        for _ in range(_UVARINT._parse(stream, context, tags_path)):
            start = stream.tell()
            tag = _UVARINT._parse(stream, context, tags_path)
            size = _UVARINT._parse(stream, context, tags_path)
            value_start = stream.tell()
            if tag in self._tags:
                name, inner, _ = self._tags[tag]
                tag_path = f"{path}{_PATH_SEPARATOR}{name}"
                values[name] = inner._parsereport(stream, context, tag_path)
                if (actual := stream.tell() - value_start) != size:
                    raise FieldError(tag_path, start, f"a tagged field of {actual} bytes with size {size}")
            else:
                tag_path = f"{path}{_PATH_SEPARATOR}tag {tag}"
                _report(context, tag_path, "tag", _read(stream, size, tag_path), start, stream)
        return values

    def _build(self, value: Any, stream: Any, context: Any, path: str) -> Any:
        self._body._build(value, stream, context, path)
        present = [
            (tag, inner.build(value[name]))
            for tag, (name, inner, default) in sorted(self._tags.items())
            if value[name] != default
        ]
        _UVARINT._build(len(present), stream, context, path)
        for tag, raw in present:
            _UVARINT._build(tag, stream, context, path)
            _UVARINT._build(len(raw), stream, context, path)
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
    nullable = row.is_nullable_in(version)
    if isinstance(row.type, list):
        return _Array(_element(row.type[0], version, flexible, False), flexible, nullable)
    if isinstance(row.type, StructType) and nullable:
        return _Nullable(_struct(row.type, version, flexible), row.tag >= 0)
    return _element(row.type, version, flexible, nullable)


def _element(kind: Any, version: int, flexible: bool, nullable: bool) -> construct.Construct:
    if isinstance(kind, StructType):
        return _struct(kind, version, flexible)
    return _Fixed(kind) if kind in FIXED else _Sized(kind, flexible, nullable)
