"""The generated decoders: what they look like and what they call.

Nothing that a frame claims is believed: a count is held against the bytes that are left before a list grows,
a length against the end of the frame before a slice is taken. All arrays of a message share a bound.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct as Format
from struct import error as StructError
from typing import Any

from protocol.errors import MalformedError
from protocol.fast.primitives import MAX_TAGS, skip_tags, too_many, uvarint
from protocol.schema.encoder_source import MAX_STRING
from protocol.schema.layout import Layout, Source, fixed_size, is_flexible, layout, literal, minimal_size
from protocol.schema.message import Message, StructType, most_elements
from protocol.schema.primitives import FIXED, LENGTH_FORMATS, Buffer

_SHORT_ARRAY = 9


def malformed(name: str, size: int) -> MalformedError:
    """A length or count below zero, null where the version has no null, or beyond the frame."""
    return MalformedError(f"{name} claims a size of {size}")


def string_size(buf: Any, pos: int) -> tuple[int, int]:
    """A compact string's length plus one, when it takes several bytes. Kafka's limit is int16 here too."""
    size, pos = uvarint(buf, pos)
    if size > MAX_STRING + 1:
        raise MalformedError(f"string of {size - 1} bytes")
    return size, pos


def unpack_array(format: str, count: int, buf: Buffer, pos: int) -> list[Any]:
    return list(Format(f">{count}{format}").unpack_from(buf, pos))


def short_array_unpackers(format: str) -> tuple[Callable[..., tuple[Any, ...]], ...]:
    return tuple(Format(f">{size}{format}").unpack_from for size in range(_SHORT_ARRAY))


def decode_source(cls: type[Message], version: int) -> Source:
    """`function(buf, pos)` gives (message, next position) or raises MalformedError."""
    source = Source("def function(buf, pos):")
    title = f"{cls.__name__} v{version}"
    source.constants.update(
        uvarint=uvarint,
        string_size=string_size,
        skip_tags=skip_tags,
        unpack_array=unpack_array,
        malformed=malformed,
        MalformedError=MalformedError,
        MAX_ELEMENTS=most_elements(cls),
        TOO_MANY=too_many(most_elements(cls)),
        StructError=StructError,
        new=object.__new__,
    )
    source.put("limit = len(buf)")
    source.put("room = MAX_ELEMENTS")
    with source.block("try:"):
        _Decoder(source, version).message(cls)
        source.put("return m, pos")
    with source.block("except (IndexError, StructError) as error:"):
        source.put(f"raise MalformedError({f'{title} is truncated'!r}) from error")
    return source


class _Decoder:
    """Emits the lines that decode values. Fields of fixed size wait in a run until something else follows."""

    def __init__(self, source: Source, version: int) -> None:
        self._source = source
        self._version = version
        self._run: list[tuple[str, str]] = []

    def message(self, cls: type[Message]) -> None:
        self._struct(cls, "m", cls.__name__, is_flexible(cls, self._version))
        self._flush()

    def _flush(self) -> None:
        if not self._run:
            return
        formats = "".join(format for format, _ in self._run)
        unpack = self._source.constant("unpack", formats, Format(f">{formats}").unpack_from)
        targets = ", ".join(target for _, target in self._run)
        comma = "," if len(self._run) == 1 else ""
        self._source.put(f"{targets}{comma} = {unpack}(buf, pos)")
        self._source.put(f"pos += {sum(fixed_size(format) for format, _ in self._run)}")
        self._run.clear()

    def _struct(self, cls: StructType, target: str, path: str, flexible: bool) -> None:
        """Make a struct in the variable `target` and fill it."""
        shape = layout(cls, self._version, flexible)
        self._source.put(f"{target} = new({self._source.constant('C', cls, cls)})")
        for field in shape.absent + shape.tagged:
            self._source.put(f"{target}.{field.name} = {literal(self._source, field.row.initial())}")
        for field in shape.plain:
            name = f"{path}.{field.name}"
            self._value(field.row.type, f"{target}.{field.name}", name, field.nullable, field.flexible)
        if flexible:
            self._flush()
            self._tags(shape, target, path)

    def _tags(self, shape: Layout, target: str, path: str) -> None:
        with self._source.block("if not buf[pos]:"):
            self._source.put("pos += 1")
        with self._source.block("else:"):
            if not shape.tagged:
                self._source.put("pos = skip_tags(buf, pos)")
                return
            count, tag, size, end = (self._source.name(prefix) for prefix in ("n", "tag", "size", "end"))
            self._source.put(f"{count}, pos = uvarint(buf, pos)")
            with self._source.block(f"if {count} > {MAX_TAGS}:"):
                self._source.put(f"raise malformed({f'{path} tags'!r}, {count})")
            with self._source.block(f"for _ in range({count}):"):
                self._source.put(f"{tag}, pos = uvarint(buf, pos)")
                self._source.put(f"{size}, pos = uvarint(buf, pos)")
                self._source.put(f"{end} = pos + {size}")
                with self._source.block(f"if {end} > limit:"):
                    self._source.put(f"raise malformed({f'{path} tag'!r}, {size})")
                word = "if"
                for field in shape.tagged:
                    with self._source.block(f"{word} {tag} == {field.row.tag}:"):
                        name = f"{path}.{field.name}"
                        self._value(field.row.type, f"{target}.{field.name}", name, field.nullable, True)
                        self._flush()
                    word = "elif"
                with self._source.block("else:"):
                    self._source.put(f"pos = {end}")
                with self._source.block(f"if pos != {end}:"):
                    self._source.put(f"raise malformed({f'{path} tag'!r}, {size})")

    def _value(self, kind: Any, target: str, path: str, nullable: bool, flexible: bool) -> None:
        if isinstance(kind, list):
            self._array(kind[0], target, path, nullable, flexible)
        elif isinstance(kind, StructType):
            self._inner_struct(kind, target, path, nullable, flexible)
        elif kind in FIXED:
            self._run.append((FIXED[kind], target))
        else:
            self._sized(kind, target, path, nullable, flexible)

    def _inner_struct(self, kind: StructType, target: str, path: str, nullable: bool, flexible: bool) -> None:
        inner = self._source.name("v")
        self._flush()
        if not nullable:
            self._struct(kind, inner, path, flexible)
            self._source.put(f"{target} = {inner}")
            return
        # KIP-893: a byte says whether the struct is there; below zero, as int8, is null.
        self._source.put("pos += 1")
        with self._source.block("if buf[pos - 1] > 127:"):
            self._source.put(f"{target} = None")
        with self._source.block("else:"):
            self._struct(kind, inner, path, flexible)
            self._flush()
            self._source.put(f"{target} = {inner}")

    def _size(self, format: str, flexible: bool, reader: str = "uvarint") -> str:
        """Read a length or a count, -1 for null, into a variable."""
        size = self._source.name("n")
        if not flexible:
            self._run.append((format, size))
            self._flush()
            return size
        self._flush()
        self._source.put(f"{size} = buf[pos]")
        with self._source.block(f"if {size} < 128:"):
            self._source.put("pos += 1")
        with self._source.block("else:"):
            self._source.put(f"{size}, pos = {reader}(buf, pos)")
        self._source.put(f"{size} -= 1")
        return size

    def _sized(self, kind: str, target: str, path: str, nullable: bool, flexible: bool) -> None:
        reader = "string_size" if kind == "string" else "uvarint"
        size = self._size(LENGTH_FORMATS[kind], flexible, reader)
        if not nullable:
            self._slice(kind, target, path, size)
            return
        with self._source.block(f"if {size} == -1:"):
            self._source.put(f"{target} = None")
        with self._source.block("else:"):
            self._slice(kind, target, path, size)

    def _slice(self, kind: str, target: str, path: str, size: str) -> None:
        end = self._source.name("end")
        self._source.put(f"{end} = pos + {size}")
        with self._source.block(f"if not pos <= {end} <= limit:"):
            self._source.put(f"raise malformed({path!r}, {size})")
        part = f"buf[pos:{end}]"
        # What is no UTF-8 is replaced, as in Kafka: names of it are merely unknown or invalid.
        made = {"string": f"str({part}, 'utf-8', 'replace')", "bytes": f"bytes({part})", "records": part}[kind]
        self._source.put(f"{target} = {made}")
        self._source.put(f"pos = {end}")

    def _array(self, kind: Any, target: str, path: str, nullable: bool, flexible: bool) -> None:
        count = self._size("i", flexible)
        if not nullable:
            self._elements(kind, target, path, count, flexible)
            return
        with self._source.block(f"if {count} == -1:"):
            self._source.put(f"{target} = None")
        with self._source.block("else:"):
            self._elements(kind, target, path, count, flexible)

    def _elements(self, kind: Any, target: str, path: str, count: str, flexible: bool) -> None:
        least = minimal_size(kind, False, self._version, flexible)
        with self._source.block(f"if not 0 <= {count} * {least} <= limit - pos:"):
            self._source.put(f"raise malformed({path!r}, {count})")
        self._source.put(f"room -= {count}")
        with self._source.block("if room < 0:"):
            self._source.put("raise MalformedError(TOO_MANY)")
        if isinstance(kind, str) and kind in FIXED:
            format = FIXED[kind]
            short = self._source.constant("short", ("array", format), short_array_unpackers(format))
            long = f"unpack_array({format!r}, {count}, buf, pos)"
            head = f"list({short}[{count}](buf, pos)) if {count} < {_SHORT_ARRAY} else {long}"
            self._source.put(f"{target} = {head}")
            self._source.put(f"pos += {count} * {least}")
            return
        values, element = self._source.name("x"), self._source.name("v")
        self._source.put(f"{target} = {values} = []")
        with self._source.block(f"for _ in range({count}):"):
            if isinstance(kind, StructType):
                self._struct(kind, element, path, flexible)
            else:
                self._value(kind, element, path, False, flexible)
            self._flush()
            self._source.put(f"{values}.append({element})")
