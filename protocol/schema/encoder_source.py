"""The generated encoders: what they look like and what they call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from struct import Struct as Format
from struct import error as StructError
from typing import Any

from protocol.fast.primitives import put_uvarint
from protocol.schema.layout import Layout, Source, is_flexible, layout, literal
from protocol.schema.message import Message, Row, Struct, StructType
from protocol.schema.primitives import FIXED, LENGTH_FORMATS

MAX_STRING = 0x7FFF
_SHORT_ARRAY = 9
COMPACT_NULL = b"\0"
CLASSIC_NULL = b"\xff\xff\xff\xff"
# KIP-893: a byte says whether a nullable struct is there.
NO_STRUCT = b"\xff"
A_STRUCT = b"\1"

ONE_BYTE = tuple(bytes((value,)) for value in range(128))


def string_size(size: int) -> bytes:
    """A compact string's length plus one. Kafka holds strings to int16 in flexible versions too."""
    if size > MAX_STRING + 1:
        raise ValueError(f"string of {size - 1} bytes")
    return put_uvarint(size)


def short_array_packers(format: str, flexible: bool) -> tuple[Callable[..., bytes], ...]:
    """Functions of (encoded count, *elements) for arrays of 0 to 8 elements."""
    count = "B" if flexible else "i"
    return tuple(Format(f">{count}{size}{format}").pack for size in range(_SHORT_ARRAY))


def pack_array(format: str, flexible: bool, values: Sequence[Any]) -> bytes:
    count = len(values)
    head = put_uvarint(count + 1) if flexible else Format(">i").pack(count)
    return head + Format(f">{count}{format}").pack(*values)


def encode_source(cls: type[Message], version: int) -> Source:
    """`function(m, out)` appends the encoding of the message `m` to the list `out`."""
    source = Source("def function(m, out):")
    title = f"{cls.__name__} v{version}"
    source.constants.update(
        ONE_BYTE=ONE_BYTE,
        put_uvarint=put_uvarint,
        string_size=string_size,
        pack_array=pack_array,
        StructError=StructError,
    )
    source.put("add = out.append")
    with source.block("try:"):
        _Encoder(source, title, version).message(cls)
    with source.block("except (StructError, TypeError, AttributeError) as error:"):
        source.put(f"raise ValueError(f'{title} cannot carry a value: {{error}}') from error")
    return source


class _Encoder:
    """Emits the lines that encode values. Fields of fixed size wait in a run until something else follows."""

    def __init__(self, source: Source, title: str, version: int) -> None:
        self._source = source
        self._title = title
        self._version = version
        self._run: list[tuple[str, str]] = []
        self._add = "add"

    def message(self, cls: type[Message]) -> None:
        self._struct(cls, "m", is_flexible(cls, self._version))
        self._flush()
        self._source.put("pass")

    def _flush(self) -> None:
        if not self._run:
            return
        formats = "".join(format for format, _ in self._run)
        values = ", ".join(value for _, value in self._run if value)
        if values:
            pack = self._source.constant("pack", formats, Format(f">{formats}").pack)
            self._source.put(f"{self._add}({pack}({values}))")
        else:
            self._source.put(f"{self._add}({bytes(len(formats))!r})")
        self._run.clear()

    def _struct(self, cls: StructType, value: str, flexible: bool) -> None:
        shape = layout(cls, self._version, flexible)
        for field in shape.absent:
            if not field.row.ignorable:
                with self._source.block(f"if {self._differs(f'{value}.{field.name}', field.row)}:"):
                    self._source.put(f"raise ValueError({f'{self._title} has no {field.name}'!r})")
        for field in shape.plain:
            self._value(field.row.type, f"{value}.{field.name}", field.nullable, field.flexible)
        if flexible:
            self._tags(shape, value)

    def _differs(self, value: str, row: Row) -> str:
        default = row.initial()
        if default is None:
            return f"{value} is not None"
        if isinstance(default, list):
            return f"{value} is None or {value}"
        if isinstance(default, Struct):
            return f"{value} != {self._source.constant('default', (type(default), 'default'), default)}"
        return f"{value} != {literal(self._source, default)}"

    def _tags(self, shape: Layout, value: str) -> None:
        if not shape.tagged:
            self._run.append(("x", ""))
            return
        self._flush()
        tags = self._source.name("tags")
        self._source.put(f"{tags} = []")
        outer = self._add
        for field in shape.tagged:
            with self._source.block(f"if {self._differs(f'{value}.{field.name}', field.row)}:"):
                parts = self._source.name("parts")
                self._source.put(f"{parts} = []")
                self._add = f"{parts}.append"
                self._value(field.row.type, f"{value}.{field.name}", field.nullable, True)
                self._flush()
                self._source.put(f"{parts} = b''.join({parts})")
                head = repr(put_uvarint(field.row.tag))
                self._source.put(f"{tags}.append({head} + put_uvarint(len({parts})) + {parts})")
        self._add = outer
        self._source.put(f"{outer}(put_uvarint(len({tags})) + b''.join({tags}))")

    def _value(self, kind: Any, value: str, nullable: bool, flexible: bool) -> None:
        if isinstance(kind, list):
            self._array(kind[0], value, nullable, flexible)
        elif isinstance(kind, StructType):
            self._nullable_struct(kind, value, flexible) if nullable else self._struct(kind, value, flexible)
        elif kind in FIXED:
            self._run.append((FIXED[kind], value))
        elif flexible:
            self._compact(kind, value, nullable)
        else:
            self._classic(kind, value, nullable)

    def _nullable_struct(self, kind: StructType, value: str, flexible: bool) -> None:
        self._flush()
        with self._source.block(f"if {value} is None:"):
            self._source.put(f"{self._add}({NO_STRUCT!r})")
        with self._source.block("else:"):
            inner = self._source.name("v")
            self._source.put(f"{inner} = {value}")
            self._source.put(f"{self._add}({A_STRUCT!r})")
            self._struct(kind, inner, flexible)
            self._flush()

    def _compact(self, kind: str, value: str, nullable: bool) -> None:
        self._flush()
        raw = self._source.name("s")
        self._source.put(f"{raw} = {value}")
        if not nullable:
            self._compact_body(kind, raw)
            return
        with self._source.block(f"if {raw} is None:"):
            self._source.put(f"{self._add}({COMPACT_NULL!r})")
        with self._source.block("else:"):
            self._compact_body(kind, raw)

    def _compact_body(self, kind: str, raw: str) -> None:
        if kind == "string":
            self._source.put(f"{raw} = {raw}.encode()")
        size = self._source.name("n")
        self._source.put(f"{size} = len({raw}) + 1")
        if kind == "string":
            head = f"(ONE_BYTE[{size}] if {size} < 128 else string_size({size}))"
            self._source.put(f"{self._add}({head} + {raw})")
        else:
            self._source.put(f"{self._add}(put_uvarint({size}))")
            self._source.put(f"{self._add}({raw})")

    def _classic(self, kind: str, value: str, nullable: bool) -> None:
        raw, size = self._source.name("s"), self._source.name("n")
        convert = ".encode()" if kind == "string" else ""
        self._source.put(f"{raw} = {value}")
        if nullable:
            with self._source.block(f"if {raw} is None:"):
                self._source.put(f"{raw} = b''")
                self._source.put(f"{size} = -1")
            with self._source.block("else:"):
                self._source.put(f"{raw} = {raw}{convert}")
                self._source.put(f"{size} = len({raw})")
        else:
            self._source.put(f"{raw} = {raw}{convert}")
            self._source.put(f"{size} = len({raw})")
        self._run.append((LENGTH_FORMATS[kind], size))
        self._flush()
        self._source.put(f"{self._add}({raw})")

    def _array(self, kind: Any, value: str, nullable: bool, flexible: bool) -> None:
        values = self._source.name("x")
        self._source.put(f"{values} = {value}")
        if not nullable:
            self._array_body(kind, values, flexible)
            return
        self._flush()
        with self._source.block(f"if {values} is None:"):
            self._source.put(f"{self._add}({COMPACT_NULL if flexible else CLASSIC_NULL!r})")
        with self._source.block("else:"):
            self._array_body(kind, values, flexible)

    def _array_body(self, kind: Any, values: str, flexible: bool) -> None:
        count = self._source.name("n")
        self._source.put(f"{count} = len({values})")
        encoded = f"{count} + 1" if flexible else count
        if isinstance(kind, str) and kind in FIXED:
            self._flush()
            format = FIXED[kind]
            packers = short_array_packers(format, flexible)
            short = self._source.constant("short", ("array", format, flexible), packers)
            long = f"pack_array({format!r}, {flexible}, {values})"
            head = f"{short}[{count}]({encoded}, *{values}) if {count} < {_SHORT_ARRAY} else {long}"
            self._source.put(f"{self._add}({head})")
            return
        if flexible:
            self._flush()
            head = f"ONE_BYTE[{encoded}] if {count} < 127 else put_uvarint({encoded})"
            self._source.put(f"{self._add}({head})")
        else:
            self._run.append(("i", count))
            self._flush()
        element = self._source.name("v")
        with self._source.block(f"for {element} in {values}:"):
            self._value(kind, element, False, flexible)
            self._flush()
