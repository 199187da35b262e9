"""Flat functions from rows: one encoder and one decoder per (message, version), generated at first use.

Why: an interpreted grammar needs 25 ms for a Metadata response of 1,000 partitions, which stalls the event
loop; generated code needs a tenth. The functions have the nested loops inlined, one `struct` call per run of
fields of fixed size, and the one-byte case of varints inlined. `encode_source` (codegen_encode.py) and
`decode_source` (codegen_decode.py) show them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from protocol.schema.message import Message, Row, Struct, StructType, facts
from protocol.schema.primitives import FIXED, LENGTH_FORMATS, ZERO_UUID

_SIZES = {"?": 1, "b": 1, "h": 2, "H": 2, "i": 4, "I": 4, "q": 8, "d": 8, "16s": 16, "B": 1, "x": 1}


class Source:
    """The text of a function, growing line by line, and the constants that it names."""

    def __init__(self, head: str) -> None:
        self._lines = [head]
        self._depth = 1
        self._names = 0
        self._known: dict[object, str] = {}
        self.constants: dict[str, Any] = {}

    def put(self, line: str) -> None:
        self._lines.append("    " * self._depth + line)

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        self.put(head)
        self._depth += 1
        yield
        self._depth -= 1

    def name(self, prefix: str) -> str:
        """A variable's name that is not used yet."""
        self._names += 1
        return f"{prefix}{self._names}"

    def constant(self, prefix: str, key: object, value: Any) -> str:
        """The name under which the function sees a value; one name for each key."""
        name = self._known.get(key)
        if name is None:
            name = self._known[key] = self.name(prefix)
            self.constants[name] = value
        return name

    def text(self) -> str:
        return "\n".join(self._lines) + "\n"

    def compile(self, title: str) -> Any:
        """The function that the text calls `function`; `title` is its file in tracebacks and profiles."""
        names = dict(self.constants)
        exec(compile(self.text(), f"<{title}>", "exec"), names)
        return names["function"]


class Field(NamedTuple):
    """A row as one version sees it."""

    name: str
    row: Row
    nullable: bool
    flexible: bool


class Layout(NamedTuple):
    """A struct in one version: untagged fields in order, tagged ones by number, those that it lacks."""

    plain: list[Field]
    tagged: list[Field]
    absent: list[Field]
    flexible: bool


def layout(cls: StructType, version: int, flexible: bool) -> Layout:
    plain, tagged, absent = [], [], []
    for name, row in cls.__rows__.items():
        field = Field(name, row, row.is_nullable_in(version), flexible and row.flexible)
        if not row.is_in(version):
            absent.append(field)
        elif row.tag >= 0:
            tagged.append(field)
        else:
            plain.append(field)
    tagged.sort(key=lambda field: field.row.tag)
    return Layout(plain, tagged, absent, flexible)


def is_flexible(cls: type[Message], version: int) -> bool:
    known = facts(cls)
    if not known.min <= version <= known.max:
        raise ValueError(f"{cls.__name__} has no version {version}")
    return version >= known.flexible_from


def fixed_size(format: str) -> int:
    return _SIZES[format]


def minimal_size(kind: Any, nullable: bool, version: int, flexible: bool) -> int:
    """The fewest bytes that a value of a type takes: what an array's count is checked with."""
    if isinstance(kind, list):
        return 1 if flexible else 4
    if isinstance(kind, StructType):
        return 1 if nullable else minimal_struct_size(kind, version, flexible)
    if kind in FIXED:
        return fixed_size(FIXED[kind])
    return 1 if flexible else fixed_size(LENGTH_FORMATS[kind])


def minimal_struct_size(cls: StructType, version: int, flexible: bool) -> int:
    shape = layout(cls, version, flexible)
    size = sum(minimal_size(f.row.type, f.nullable, version, f.flexible) for f in shape.plain)
    return size + 1 if flexible else size


def literal(source: Source, value: Any) -> str:
    """An expression for a default: fresh where it can change."""
    if isinstance(value, Struct):
        return f"{source.constant('C', type(value), type(value))}()"
    if value == ZERO_UUID and isinstance(value, bytes):
        return source.constant("Z", ZERO_UUID, ZERO_UUID)
    return repr(value)


def constructor(cls: StructType) -> Callable[..., None]:
    """`__init__` of a struct: keywords only, a default for every field."""
    source = Source("")
    parameters, body = [], []
    for name, row in cls.__rows__.items():
        default = row.initial()
        if isinstance(default, list | Struct):
            fresh = source.constant("FRESH", "fresh", object())
            parameters.append(f"{name}={fresh}")
            body.append(f"self.{name} = {literal(source, default)} if {name} is {fresh} else {name}")
        else:
            parameters.append(f"{name}={literal(source, default)}")
            body.append(f"self.{name} = {name}")
    star = "*, " if parameters else ""
    source.put(f"def function(self, {star}{', '.join(parameters)}):")
    lines = [source.text().strip(), *(f"    {line}" for line in body or ["pass"])]
    names = dict(source.constants)
    exec(compile("\n".join(lines), f"<{cls.__name__}()>", "exec"), names)
    made: Callable[..., None] = names["function"]
    return made


def encode_function(cls: type[Message], version: int) -> Callable[[Any, list[Any]], None]:
    from protocol.schema.encoder_source import encode_source

    made: Callable[[Any, list[Any]], None] = encode_source(cls, version).compile(f"encode {cls.__name__} v{version}")
    return made


def decode_function(cls: type[Message], version: int) -> Callable[[Any, int], tuple[Any, int]]:
    from protocol.schema.decoder_source import decode_source

    made: Callable[[Any, int], tuple[Any, int]] = decode_source(cls, version).compile(
        f"decode {cls.__name__} v{version}"
    )
    return made
