"""The source of a generated encoder, and the functions that it calls.

`print(encoder_source(MetadataResponse, 12).text())` shows one.
"""

from collections.abc import Callable, Sequence
from struct import Struct as Format
from struct import error as StructError
from typing import Any

from protocol.schema.function_source import FunctionSource
from protocol.schema.layout import StructLayout, is_flexible_version, struct_layout
from protocol.schema.message import Message, Row, Struct, StructType, default_expression
from protocol.schema.primitives import FIXED, LENGTH_FORMATS, repeated
from protocol.varints import encode_uvarint

MAX_STRING = 0x7FFF
# Encoding this many buffers takes a millisecond if each has 32 KB, and less if they are small.
STEP_BUFFERS = 100
# Arrays of numbers with fewer elements have a separate packer for each length.
_SHORT_ARRAY = 9
COMPACT_NULL = b"\0"
CLASSIC_NULL = b"\xff\xff\xff\xff"
# The byte before a nullable struct (KIP-893).
STRUCT_ABSENT = b"\xff"
STRUCT_PRESENT = b"\1"
# In a tagged field, the byte is an unsigned varint.
TAGGED_STRUCT_ABSENT = b"\0"

ONE_BYTE = tuple(bytes((value,)) for value in range(128))


def encode_string_length(size: int) -> bytes:
    """Encode the length plus one of a compact string. Kafka limits strings to int16 in flexible versions too."""
    if size > MAX_STRING + 1:
        raise ValueError(f"string of {size - 1} bytes")
    return encode_uvarint(size)


def short_array_packers(format: str, flexible: bool) -> tuple[Callable[..., bytes], ...]:
    """Return a function of (encoded count, *elements) for each array length below _SHORT_ARRAY."""
    count = "B" if flexible else "i"
    return tuple(Format(f">{count}{repeated(format, size)}").pack for size in range(_SHORT_ARRAY))


def pack_array(format: str, flexible: bool, values: Sequence[Any]) -> bytes:
    count = len(values)
    head = encode_uvarint(count + 1) if flexible else Format(">i").pack(count)
    return head + Format(f">{repeated(format, count)}").pack(*values)


def encoder_source(cls: type[Message], version: int) -> FunctionSource:
    """Return the source of `function(message, out, pause)`, which appends the encoding of a message to the list `out`.

    `pause` is called after every STEP_BUFFERS of an array. It may remove them from the list.
    """
    source = FunctionSource("def function(message, out, pause=None):")
    title = f"{cls.__name__} v{version}"
    source.constants.update(
        ONE_BYTE=ONE_BYTE,
        encode_uvarint=encode_uvarint,
        encode_string_length=encode_string_length,
        pack_array=pack_array,
        StructError=StructError,
    )
    source.emit("append = out.append")
    source.emit(f"pause_len = {STEP_BUFFERS}")
    with source.block("try:"):
        _Encoder(source, title, version).message(cls)
    with source.block("except (StructError, TypeError, AttributeError) as error:"):
        source.emit(f"raise ValueError(f'{title} cannot carry a value: {{error}}') from error")
    return source


class _Encoder:
    """Emits the lines that encode values.

    Adjacent fields of fixed size are collected in `_run` and packed by one `struct` call, emitted by `_flush`.
    """

    def __init__(self, source: FunctionSource, title: str, version: int) -> None:
        self._source = source
        self._title = title
        self._version = version
        self._run: list[tuple[str, str]] = []
        self._append = "append"

    def message(self, cls: type[Message]) -> None:
        self._struct(cls, "message", is_flexible_version(cls, self._version))
        self._flush()
        self._source.emit("pass")

    def _flush(self) -> None:
        if not self._run:
            return
        formats = "".join(format for format, _ in self._run)
        values = ", ".join(value for _, value in self._run if value)
        if values:
            pack = self._source.constant("pack", formats, Format(f">{formats}").pack)
            self._source.emit(f"{self._append}({pack}({values}))")
        else:
            self._source.emit(f"{self._append}({bytes(len(formats))!r})")
        self._run.clear()

    def _struct(self, cls: StructType, value: str, flexible: bool) -> None:
        layout = struct_layout(cls, self._version, flexible)
        for field in layout.absent:
            if not field.row.ignorable:
                with self._source.block(f"if {self._differs_from_default(f'{value}.{field.name}', field.row)}:"):
                    self._source.emit(f"raise ValueError({f'{self._title} has no {field.name}'!r})")
        for field in layout.plain:
            self._value(field.row.type, f"{value}.{field.name}", field.nullable, field.flexible)
        if flexible:
            self._tagged_fields(layout, value)

    def _differs_from_default(self, value: str, row: Row) -> str:
        """Return the condition, as source text, that a value differs from its default."""
        default = row.new_default()
        if default is None:
            return f"{value} is not None"
        if isinstance(default, list):
            return f"{value} is None or {value}"
        if isinstance(default, Struct):
            return f"{value} != {self._source.constant('default', (type(default), 'default'), default)}"
        return f"{value} != {default_expression(self._source, default)}"

    def _tagged_fields(self, layout: StructLayout, value: str) -> None:
        if not layout.tagged:
            self._run.append(("x", ""))
            return
        self._flush()
        tags = self._source.variable("tags")
        self._source.emit(f"{tags} = []")
        outer = self._append
        for field in layout.tagged:
            with self._source.block(f"if {self._differs_from_default(f'{value}.{field.name}', field.row)}:"):
                parts = self._source.variable("parts")
                self._source.emit(f"{parts} = []")
                self._append = f"{parts}.append"
                if field.nullable and isinstance(field.row.type, StructType):
                    self._nullable_struct(field.row.type, f"{value}.{field.name}", True, TAGGED_STRUCT_ABSENT)
                else:
                    self._value(field.row.type, f"{value}.{field.name}", field.nullable, True)
                self._flush()
                self._source.emit(f"{parts} = b''.join({parts})")
                head = repr(encode_uvarint(field.row.tag))
                self._source.emit(f"{tags}.append({head} + encode_uvarint(len({parts})) + {parts})")
        self._append = outer
        self._source.emit(f"{outer}(encode_uvarint(len({tags})) + b''.join({tags}))")

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

    def _nullable_struct(self, kind: StructType, value: str, flexible: bool, absent: bytes = STRUCT_ABSENT) -> None:
        self._flush()
        with self._source.block(f"if {value} is None:"):
            self._source.emit(f"{self._append}({absent!r})")
        with self._source.block("else:"):
            inner = self._source.variable("v")
            self._source.emit(f"{inner} = {value}")
            self._source.emit(f"{self._append}({STRUCT_PRESENT!r})")
            self._struct(kind, inner, flexible)
            self._flush()

    def _compact(self, kind: str, value: str, nullable: bool) -> None:
        self._flush()
        raw = self._source.variable("s")
        self._source.emit(f"{raw} = {value}")
        if not nullable:
            self._compact_body(kind, raw)
            return
        with self._source.block(f"if {raw} is None:"):
            self._source.emit(f"{self._append}({COMPACT_NULL!r})")
        with self._source.block("else:"):
            self._compact_body(kind, raw)

    def _compact_body(self, kind: str, raw: str) -> None:
        if kind == "string":
            self._source.emit(f"{raw} = {raw}.encode()")
        size = self._source.variable("n")
        self._source.emit(f"{size} = len({raw}) + 1")
        if kind == "string":
            head = f"(ONE_BYTE[{size}] if {size} < 128 else encode_string_length({size}))"
            self._source.emit(f"{self._append}({head} + {raw})")
        else:
            self._source.emit(f"{self._append}(encode_uvarint({size}))")
            self._source.emit(f"{self._append}({raw})")

    def _classic(self, kind: str, value: str, nullable: bool) -> None:
        raw, size = self._source.variable("s"), self._source.variable("n")
        convert = ".encode()" if kind == "string" else ""
        self._source.emit(f"{raw} = {value}")
        if nullable:
            with self._source.block(f"if {raw} is None:"):
                self._source.emit(f"{raw} = b''")
                self._source.emit(f"{size} = -1")
            with self._source.block("else:"):
                self._source.emit(f"{raw} = {raw}{convert}")
                self._source.emit(f"{size} = len({raw})")
        else:
            self._source.emit(f"{raw} = {raw}{convert}")
            self._source.emit(f"{size} = len({raw})")
        self._run.append((LENGTH_FORMATS[kind], size))
        self._flush()
        self._source.emit(f"{self._append}({raw})")

    def _array(self, kind: Any, value: str, nullable: bool, flexible: bool) -> None:
        values = self._source.variable("x")
        self._source.emit(f"{values} = {value}")
        if not nullable:
            self._array_body(kind, values, flexible)
            return
        self._flush()
        with self._source.block(f"if {values} is None:"):
            self._source.emit(f"{self._append}({COMPACT_NULL if flexible else CLASSIC_NULL!r})")
        with self._source.block("else:"):
            self._array_body(kind, values, flexible)

    def _array_body(self, kind: Any, values: str, flexible: bool) -> None:
        count = self._source.variable("n")
        self._source.emit(f"{count} = len({values})")
        encoded = f"{count} + 1" if flexible else count
        if isinstance(kind, str) and kind in FIXED:
            self._flush()
            format = FIXED[kind]
            packers = short_array_packers(format, flexible)
            short = self._source.constant("short", ("array", format, flexible), packers)
            long = f"pack_array({format!r}, {flexible}, {values})"
            head = f"{short}[{count}]({encoded}, *{values}) if {count} < {_SHORT_ARRAY} else {long}"
            self._source.emit(f"{self._append}({head})")
            return
        if flexible:
            self._flush()
            head = f"ONE_BYTE[{encoded}] if {count} < 127 else encode_uvarint({encoded})"
            self._source.emit(f"{self._append}({head})")
        else:
            self._run.append(("i", count))
            self._flush()
        element = self._source.variable("v")
        with self._source.block(f"for {element} in {values}:"):
            self._value(kind, element, False, flexible)
            self._flush()
            with self._source.block("if pause is not None and len(out) > pause_len:"):
                self._source.emit("pause()")
                self._source.emit(f"pause_len = len(out) + {STEP_BUFFERS}")
