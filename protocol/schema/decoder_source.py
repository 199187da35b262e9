"""The source of a generated decoder, and the functions that it calls.

`print(decoder_source(MetadataRequest, 12).text())` shows one.

A decoder does not trust the frame: it checks a count against the remaining bytes before a list grows, and a length
against the end of the frame before it slices. All arrays of a message together have a maximum number of elements.
"""

from collections.abc import Callable
from io import BytesIO
from struct import Struct as Format
from struct import error as StructError
from typing import Any

from protocol.errors import MalformedError, ManyElements
from protocol.limits import MAX_TAGGED_FIELDS, too_many_elements
from protocol.schema.encoder_source import MAX_STRING
from protocol.schema.function_source import FunctionSource
from protocol.schema.layout import StructLayout, format_size, is_flexible_version, min_encoded_size, struct_layout
from protocol.schema.message import Message, StructType, default_expression, message_info
from protocol.schema.primitives import FIXED, LENGTH_FORMATS, Buffer, repeated
from protocol.varints import decode_uvarint, skip_tagged_fields

# Decoding this many bytes of small elements takes 1 or 2 ms.
STEP_BYTES = 8192
# So does copying this many bytes to new memory.
COPIED_AT_ONCE = 512 * 1024
# Arrays of numbers with fewer elements have a separate unpacker for each length.
_SHORT_ARRAY = 9


def malformed(name: str, size: int) -> MalformedError:
    """Return the error for a length or count that is negative, null where not allowed, or past the frame."""
    return MalformedError(f"{name} claims a size of {size}")


def decode_string_length(buf: Any, pos: int) -> tuple[int, int]:
    """Decode the length plus one of a compact string. Kafka limits strings to int16 in flexible versions too."""
    size, pos = decode_uvarint(buf, pos)
    if size > MAX_STRING + 1:
        raise MalformedError(f"string of {size - 1} bytes")
    return size, pos


def copy_in_pieces(part: Buffer, pause: Callable[[], None]) -> bytes:
    """Copy bytes, with a pause after each piece: 80 MB take 80 ms, with the page faults."""
    # These zeros become memory when they are written, and the buffer stays the same: it is not copied when it grows.
    copied = BytesIO(bytes(len(part)))
    for start in range(0, len(part), COPIED_AT_ONCE):
        copied.write(part[start : start + COPIED_AT_ONCE])
        pause()
    # Another copy is not made.
    return copied.getvalue()


def unpack_array(format: str, count: int, buf: Buffer, pos: int) -> list[Any]:
    return list(Format(f">{repeated(format, count)}").unpack_from(buf, pos))


def short_array_unpackers(format: str) -> tuple[Callable[..., tuple[Any, ...]], ...]:
    return tuple(Format(f">{repeated(format, size)}").unpack_from for size in range(_SHORT_ARRAY))


def decoder_source(cls: type[Message], version: int) -> FunctionSource:
    """Return the source of `function(buf, pos, max_elements, pause)`.

    It returns (message, next position), or raises MalformedError: ManyElements if the arrays have more than
    `max_elements`, which is by default the bound of the message. `pause` is called after every STEP_BYTES of an array.
    """
    max_elements = message_info(cls).max_elements
    source = FunctionSource("def function(buf, pos, elements_left=MAX_ELEMENTS, pause=None):")
    title = f"{cls.__name__} v{version}"
    source.constants.update(
        decode_uvarint=decode_uvarint,
        decode_string_length=decode_string_length,
        copy_in_pieces=copy_in_pieces,
        skip_tagged_fields=skip_tagged_fields,
        unpack_array=unpack_array,
        malformed=malformed,
        MalformedError=MalformedError,
        ManyElements=ManyElements,
        MAX_ELEMENTS=max_elements,
        TOO_MANY=too_many_elements(max_elements),
        StructError=StructError,
        new=object.__new__,
    )
    copies = not has_records(cls)
    if copies:
        # Slices of bytes take less time than those of a memoryview.
        with source.block("if pause is None:"):
            source.emit("buf = bytes(buf)")
    source.emit("limit = len(buf)")
    source.emit(f"pause_pos = limit if pause is None else pos + {STEP_BYTES}")
    with source.block("try:"):
        _Decoder(source, version, copies).message(cls)
        source.emit("return message, pos")
    with source.block("except (IndexError, StructError) as error:"):
        source.emit(f"raise MalformedError({f'{title} is truncated'!r}) from error")
    return source


def has_records(cls: StructType) -> bool:
    """Return whether a struct contains records, which are slices of the buffer."""
    for row in cls.__rows__.values():
        kind = row.type[0] if isinstance(row.type, list) else row.type
        if kind == "records" or (isinstance(kind, StructType) and has_records(kind)):
            return True
    return False


class _Decoder:
    """Emits the lines that decode values.

    Adjacent fields of fixed size are collected in `_run` and unpacked by one `struct` call, emitted by `_flush`.
    """

    def __init__(self, source: FunctionSource, version: int, copies: bool) -> None:
        self._source = source
        self._version = version
        self._copies = copies
        self._run: list[tuple[str, str]] = []

    def message(self, cls: type[Message]) -> None:
        self._struct(cls, "message", cls.__name__, is_flexible_version(cls, self._version))
        self._flush()

    def _flush(self) -> None:
        if not self._run:
            return
        formats = "".join(format for format, _ in self._run)
        unpack = self._source.constant("unpack", formats, Format(f">{formats}").unpack_from)
        targets = ", ".join(target for _, target in self._run)
        comma = "," if len(self._run) == 1 else ""
        self._source.emit(f"{targets}{comma} = {unpack}(buf, pos)")
        self._source.emit(f"pos += {sum(format_size(format) for format, _ in self._run)}")
        self._run.clear()

    def _struct(self, cls: StructType, target: str, path: str, flexible: bool) -> None:
        """Emit the lines that decode a struct into the variable `target`."""
        layout = struct_layout(cls, self._version, flexible)
        self._source.emit(f"{target} = new({self._source.constant('C', cls, cls)})")
        for field in layout.absent + layout.tagged:
            self._source.emit(f"{target}.{field.name} = {default_expression(self._source, field.row.new_default())}")
        for field in layout.plain:
            name = f"{path}.{field.name}"
            self._value(field.row.type, f"{target}.{field.name}", name, field.nullable, field.flexible)
        if flexible:
            self._flush()
            self._tagged_fields(layout, target, path)

    def _tagged_fields(self, layout: StructLayout, target: str, path: str) -> None:
        with self._source.block("if not buf[pos]:"):
            self._source.emit("pos += 1")
        with self._source.block("else:"):
            if not layout.tagged:
                self._source.emit("pos = skip_tagged_fields(buf, pos)")
                return
            count, tag, size, end = (self._source.variable(prefix) for prefix in ("n", "tag", "size", "end"))
            self._source.emit(f"{count}, pos = decode_uvarint(buf, pos)")
            with self._source.block(f"if {count} > {MAX_TAGGED_FIELDS}:"):
                self._source.emit(f"raise malformed({f'{path} tags'!r}, {count})")
            with self._source.block(f"for _ in range({count}):"):
                self._source.emit(f"{tag}, pos = decode_uvarint(buf, pos)")
                self._source.emit(f"{size}, pos = decode_uvarint(buf, pos)")
                self._source.emit(f"{end} = pos + {size}")
                with self._source.block(f"if {end} > limit:"):
                    self._source.emit(f"raise malformed({f'{path} tag'!r}, {size})")
                word = "if"
                for field in layout.tagged:
                    with self._source.block(f"{word} {tag} == {field.row.tag}:"):
                        name = f"{path}.{field.name}"
                        if isinstance(field.row.type, StructType):
                            self._inner_struct(
                                field.row.type, f"{target}.{field.name}", name, field.nullable, True, "not buf[pos - 1]"
                            )
                        else:
                            self._value(field.row.type, f"{target}.{field.name}", name, field.nullable, True)
                        self._flush()
                    word = "elif"
                with self._source.block("else:"):
                    self._source.emit(f"pos = {end}")
                with self._source.block(f"if pos != {end}:"):
                    self._source.emit(f"raise malformed({f'{path} tag'!r}, {size})")

    def _value(self, kind: Any, target: str, path: str, nullable: bool, flexible: bool) -> None:
        if isinstance(kind, list):
            self._array(kind[0], target, path, nullable, flexible)
        elif isinstance(kind, StructType):
            self._inner_struct(kind, target, path, nullable, flexible)
        elif kind in FIXED:
            self._run.append((FIXED[kind], target))
        else:
            self._sized(kind, target, path, nullable, flexible)

    def _inner_struct(
        self,
        kind: StructType,
        target: str,
        path: str,
        nullable: bool,
        flexible: bool,
        is_null: str = "buf[pos - 1] > 127",
    ) -> None:
        inner = self._source.variable("v")
        self._flush()
        if not nullable:
            self._struct(kind, inner, path, flexible)
            self._source.emit(f"{target} = {inner}")
            return
        # KIP-893: an int8 before the struct, negative for null; in a tagged field a varint, 0 for null.
        self._source.emit("pos += 1")
        with self._source.block(f"if {is_null}:"):
            self._source.emit(f"{target} = None")
        with self._source.block("else:"):
            self._struct(kind, inner, path, flexible)
            self._flush()
            self._source.emit(f"{target} = {inner}")

    def _size(self, format: str, flexible: bool, reader: str = "decode_uvarint") -> str:
        """Emit the lines that decode a length or a count, -1 for null; returns the variable that holds it."""
        size = self._source.variable("n")
        if not flexible:
            self._run.append((format, size))
            self._flush()
            return size
        self._flush()
        self._source.emit(f"{size} = buf[pos]")
        with self._source.block(f"if {size} < 128:"):
            self._source.emit("pos += 1")
        with self._source.block("else:"):
            self._source.emit(f"{size}, pos = {reader}(buf, pos)")
        self._source.emit(f"{size} -= 1")
        return size

    def _sized(self, kind: str, target: str, path: str, nullable: bool, flexible: bool) -> None:
        reader = "decode_string_length" if kind == "string" else "decode_uvarint"
        size = self._size(LENGTH_FORMATS[kind], flexible, reader)
        if not nullable:
            self._slice(kind, target, path, size)
            return
        with self._source.block(f"if {size} == -1:"):
            self._source.emit(f"{target} = None")
        with self._source.block("else:"):
            self._slice(kind, target, path, size)

    def _slice(self, kind: str, target: str, path: str, size: str) -> None:
        end = self._source.variable("end")
        self._source.emit(f"{end} = pos + {size}")
        with self._source.block(f"if not pos <= {end} <= limit:"):
            self._source.emit(f"raise malformed({path!r}, {size})")
        part = f"buf[pos:{end}]"
        # Bytes that are not UTF-8 are replaced, as in Kafka.
        value = {"string": f"str({part}, 'utf-8', 'replace')", "bytes": f"bytes({part})", "records": part}[kind]
        if kind == "bytes" and self._copies:
            with self._source.block(f"if pause is not None and {size} > {COPIED_AT_ONCE}:"):
                self._source.emit(f"{target} = copy_in_pieces({part}, pause)")
            with self._source.block("else:"):
                self._source.emit(f"{target} = {value}")
        else:
            self._source.emit(f"{target} = {value}")
        if kind == "string":
            # A string keeps its hash. So no handler hashes 100 MB of names at once, which takes 50 ms.
            with self._source.block("if pause is not None:"):
                self._source.emit(f"hash({target})")
        self._source.emit(f"pos = {end}")

    def _array(self, kind: Any, target: str, path: str, nullable: bool, flexible: bool) -> None:
        count = self._size("i", flexible)
        if not nullable:
            self._elements(kind, target, path, count, flexible)
            return
        with self._source.block(f"if {count} == -1:"):
            self._source.emit(f"{target} = None")
        with self._source.block("else:"):
            self._elements(kind, target, path, count, flexible)

    def _elements(self, kind: Any, target: str, path: str, count: str, flexible: bool) -> None:
        min_size = min_encoded_size(kind, False, self._version, flexible)
        with self._source.block(f"if not 0 <= {count} * {min_size} <= limit - pos:"):
            self._source.emit(f"raise malformed({path!r}, {count})")
        self._source.emit(f"elements_left -= {count}")
        with self._source.block("if elements_left < 0:"):
            self._source.emit("raise ManyElements(TOO_MANY)")
        if isinstance(kind, str) and kind in FIXED:
            format = FIXED[kind]
            short = self._source.constant("short", ("array", format), short_array_unpackers(format))
            long = f"unpack_array({format!r}, {count}, buf, pos)"
            head = f"list({short}[{count}](buf, pos)) if {count} < {_SHORT_ARRAY} else {long}"
            self._source.emit(f"{target} = {head}")
            self._source.emit(f"pos += {count} * {min_size}")
            return
        values, element = self._source.variable("x"), self._source.variable("v")
        self._source.emit(f"{target} = {values} = []")
        with self._source.block(f"for _ in range({count}):"):
            if isinstance(kind, StructType):
                self._struct(kind, element, path, flexible)
            else:
                self._value(kind, element, path, False, flexible)
            self._flush()
            self._source.emit(f"{values}.append({element})")
            with self._source.block("if pos > pause_pos:"):
                self._source.emit("pause()")
                self._source.emit(f"pause_pos = pos + {STEP_BYTES}")
