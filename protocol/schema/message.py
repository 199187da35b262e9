"""Declarations of messages: a class for each struct, a row for each field.

    class MetadataRequestTopic(Struct):
        topic_id: bytes = row("uuid", "10+")
        name: str | None = row("string", "0+", nullable="10+")

    class MetadataRequest(Message, key=3, kind="request", versions="0-13", flexible="9+"):
        topics: list[MetadataRequestTopic] | None = row([MetadataRequestTopic], "0+", nullable="1+")

The names of classes and fields are those of Kafka's message definitions. A declaration is cheap, so that the broker
can import all messages at startup: constructors, encoders and decoders are generated at their first use.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple, dataclass_transform

from protocol.limits import MAX_COSTLY_ELEMENTS, MAX_COSTLY_RESPONSE_ELEMENTS, MAX_ELEMENTS, MAX_REQUEST_ELEMENTS
from protocol.schema.function_source import FunctionSource
from protocol.schema.primitives import DEFAULTS, ZERO_UUID

# Marks a row without an explicit default. It has the default of its type: 0, False, "", b"", [] or a new struct.
TYPE_DEFAULT: Any = object()

# Larger than all versions, which are int16.
NO_VERSION = 1 << 15


@dataclass(slots=True, eq=False)
class Row:
    """One field of a struct: its wire type, and the versions of the message that have it."""

    type: Any
    versions: str
    nullable: str
    tag: int
    default: Any
    ignorable: bool
    flexible: bool

    def is_in(self, version: int) -> bool:
        """Return whether a version of the message has this field."""
        first, last = version_range(self.versions)
        return first <= version <= last

    def is_nullable_in(self, version: int) -> bool:
        first, last = version_range(self.nullable)
        return first <= version <= last

    def new_default(self) -> Any:
        """Return the default value. A list or struct is a new object each time."""
        if self.default is not TYPE_DEFAULT:
            return self.default
        if isinstance(self.type, list):
            return []
        if isinstance(self.type, StructType):
            return self.type()
        return DEFAULTS[self.type]


def row(
    type: Any,
    versions: str,
    *,
    nullable: str = "none",
    tag: int = -1,
    default: Any = TYPE_DEFAULT,
    ignorable: bool = False,
    flexible: bool = True,
) -> Any:
    """Declare a field.

    type: the name of a primitive type, a Struct class, or a list of one of these.
    versions, nullable: the versions that have the field, and in which it may be null, in Kafka's notation ("3", "2-5",
        "4+", "none").
    tag: the number of a tagged field (KIP-482), which is encoded only if its value differs from the default.
    ignorable: whether a value other than the default is dropped in versions without the field. Otherwise encoding it
        raises ValueError.
    flexible: False for a field that has the classic encoding in flexible versions too: the request header's client id.
    """
    return Row(type, versions, nullable, tag, default, ignorable, flexible)


def version_range(text: str) -> tuple[int, int]:
    """Return the inclusive range of versions that Kafka's notation means; an empty range for "none"."""
    if text == "none":
        return NO_VERSION, -1
    if text.endswith("+"):
        return int(text[:-1]), NO_VERSION
    first, _, last = text.partition("-")
    return int(first), int(last or first)


class StructType(type):
    """The metaclass of structs: moves the rows of a class into `__rows__` and makes its fields slots."""

    # Declared here because a type checker would treat them as fields in Struct.
    __rows__: dict[str, Row]
    __options__: dict[str, Any]

    def __new__(mcs, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **options: Any) -> StructType:
        rows = {key: value for key, value in namespace.items() if value.__class__ is Row}
        for key in rows:
            del namespace[key]
        namespace["__slots__"] = tuple(rows)
        namespace["__rows__"] = rows
        if options:
            namespace["__options__"] = options
        return super().__new__(mcs, name, bases, namespace)


@dataclass_transform(kw_only_default=True)
class Struct(metaclass=StructType):
    """A struct inside a message. The constructor takes fields as keywords; every field has a default, as in Kafka."""

    def __init__(self, **values: Any) -> None:
        # Only the first instance of a class reaches this line, which generates the constructor of the class.
        cls = type(self)
        type.__setattr__(cls, "__init__", generate_constructor(cls))
        cls.__init__(self, **values)

    def __eq__(self, other: object) -> bool:
        if self.__class__ is not other.__class__:
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self.__class__.__rows__)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.__class__.__rows__)
        return f"{self.__class__.__name__}({fields})"


class Message(Struct, kind="base", versions="none"):
    """A complete message. Its class keywords are the fields of MessageInfo, with versions in Kafka's notation."""


class MessageInfo(NamedTuple):
    """The declaration of a message class, apart from its fields."""

    key: int | None  # API key; None for headers and for data
    kind: str  # "request", "response", "header" or "data" (records of internal topics, member metadata)
    min_version: int
    max_version: int
    flexible_from: int
    max_elements: int  # of all arrays of one message together


@cache
def message_info(cls: type[Message]) -> MessageInfo:
    """Return the API key, kind and version ranges of a message."""
    options = cls.__options__
    kind = options["kind"]
    is_costly = options.get("costly")
    if kind == "request":
        max_elements = MAX_COSTLY_ELEMENTS if is_costly else MAX_REQUEST_ELEMENTS
    else:
        max_elements = MAX_COSTLY_RESPONSE_ELEMENTS if is_costly else MAX_ELEMENTS
    first, last = version_range(options["versions"])
    return MessageInfo(options.get("key"), kind, first, last, version_range(options["flexible"])[0], max_elements)


def default_expression(source: FunctionSource, value: Any) -> str:
    """Return an expression for a default value in generated code; it makes a new list or struct each time."""
    if isinstance(value, Struct):
        return f"{source.constant('C', type(value), type(value))}()"
    if value == ZERO_UUID and isinstance(value, bytes):
        return source.constant("Z", ZERO_UUID, ZERO_UUID)
    return repr(value)


def generate_constructor(cls: StructType) -> Callable[..., None]:
    """Generate the `__init__` of a struct."""
    omitted = object()
    parameters, assignments = [], []
    source = FunctionSource("")
    for name, declared in cls.__rows__.items():
        default = declared.new_default()
        expression = default_expression(source, default)
        if isinstance(default, list | Struct):
            parameter = source.constant("OMITTED", omitted, omitted)
            parameters.append(f"{name}={parameter}")
            assignments.append(f"self.{name} = {expression} if {name} is {parameter} else {name}")
        else:
            parameters.append(f"{name}={expression}")
            assignments.append(f"self.{name} = {name}")
    star = "*, " if parameters else ""
    constructor = FunctionSource(f"def function(self, {star}{', '.join(parameters)}):")
    constructor.constants.update(source.constants)
    for line in assignments or ["pass"]:
        constructor.emit(line)
    function: Callable[..., None] = constructor.compile(f"{cls.__name__}()")
    return function
