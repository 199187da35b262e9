"""How messages are declared: a class per struct, a row per field; and the way to their encoders and decoders.

    class MetadataRequestTopic(Struct):
        topic_id: bytes = row("uuid", "10+")
        name: str | None = row("string", "0+", nullable="10+")

A row's first argument is the wire type: a primitive of primitives.py, a Struct class, or a list of one of
these. Declaring costs little, so that all messages can be imported at start; the code that encodes and
decodes one message in one version is generated at its first use (codegen.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, dataclass_transform

from protocol.fast.primitives import MAX_ELEMENTS, MAX_REQUESTED

if TYPE_CHECKING:
    from protocol.schema.primitives import Buffer

# A row without a default starts as its type does: 0, False, "", b"", an empty list, a fresh struct.
TYPE_DEFAULT: Any = object()

NO_VERSION = 1 << 15


class Row:
    """One field of a struct: its wire type, and the versions of the message that hold it."""

    __slots__ = ("default", "flexible", "ignorable", "nullable", "tag", "type", "versions")

    def __init__(
        self, type: Any, versions: str, nullable: str, tag: int, default: Any, ignorable: bool, flexible: bool
    ) -> None:
        self.type = type
        self.versions = versions
        self.nullable = nullable
        self.tag = tag
        self.default = default
        self.ignorable = ignorable
        self.flexible = flexible

    def is_in(self, version: int) -> bool:
        first, last = version_range(self.versions)
        return first <= version <= last

    def is_nullable_in(self, version: int) -> bool:
        first, last = version_range(self.nullable)
        return first <= version <= last

    def initial(self) -> Any:
        """A fresh default value."""
        if self.default is not TYPE_DEFAULT:
            return self.default
        if isinstance(self.type, list):
            return []
        if isinstance(self.type, StructType):
            return self.type()
        from protocol.schema.primitives import INITIAL

        return INITIAL[self.type]


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

    `versions` and `nullable` are Kafka's ranges ("3", "2-5", "4+", "none"). A field with a `tag` is a tagged
    field (KIP-482), written only when it differs from its default. A value that differs from the default in a
    version without the field is dropped if `ignorable`, else refused. `flexible=False` keeps the classic
    encoding in flexible versions (the request header's client id).
    """
    return Row(type, versions, nullable, tag, default, ignorable, flexible)


def version_range(text: str) -> tuple[int, int]:
    """The inclusive range that Kafka's notation means; an empty one for "none"."""
    if text == "none":
        return NO_VERSION, -1
    if text.endswith("+"):
        return int(text[:-1]), NO_VERSION
    first, _, last = text.partition("-")
    return int(first), int(last or first)


class Facts(NamedTuple):
    """What is known of a message as a whole. `key` is None for headers and for data inside other messages."""

    key: int | None
    kind: str
    min: int
    max: int
    flexible_from: int


class StructType(type):
    """Makes the rows of a class into its slots."""

    # Declared here and not in the classes, where a type checker would take them for fields.
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
    """A struct inside a message. Made with keywords; every field has a default, as in Kafka."""

    def __init__(self, **values: Any) -> None:
        # Only the first instance of a class comes here: the constructor is generated then.
        from protocol.schema.layout import constructor

        cls = type(self)
        type.__setattr__(cls, "__init__", constructor(cls))
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
    """A whole message; the class keywords say its API key, kind, valid versions and flexible versions."""


M = TypeVar("M", bound=Message)


def most_elements(cls: type[Message]) -> int:
    """How many elements all arrays of a message may have together."""
    options = cls.__options__
    bound: int = options.get("elements", MAX_REQUESTED if options["kind"] == "request" else MAX_ELEMENTS)
    return bound


def facts(cls: type[Message]) -> Facts:
    """The API key, kind ("request", "response", "header", "data") and version ranges of a message."""
    options = cls.__options__
    first, last = version_range(options["versions"])
    return Facts(options.get("key"), options["kind"], first, last, version_range(options["flexible"])[0])


def encoder(cls: type[M], version: int) -> Callable[[M, list[Buffer]], None]:
    """The function that appends a message's encoding to a list of buffers; bytes values are not copied.

    It raises ValueError for a value that the version cannot carry: one of a field that it does not have, a
    null where it has no null, a number or a string that is too large.
    """
    found: Callable[[M, list[Buffer]], None] | None = _functions(cls, "__encoders__").get(version)
    if found is None:
        from protocol.schema.layout import encode_function

        found = cls.__dict__["__encoders__"][version] = encode_function(cls, version)
    return found


def decoder(cls: type[M], version: int) -> Callable[[Buffer, int], tuple[M, int]]:
    """The function that decodes a message at a position of a buffer and gives (message, next position).

    It raises MalformedError and nothing else. Records are slices of the buffer; bytes are copies.
    """
    found: Callable[[Buffer, int], tuple[M, int]] | None = _functions(cls, "__decoders__").get(version)
    if found is None:
        from protocol.schema.layout import decode_function

        found = cls.__dict__["__decoders__"][version] = decode_function(cls, version)
    return found


def encode(message: Message, version: int) -> bytes:
    """The encoding of a message; raises ValueError for one that the version cannot carry."""
    out: list[Buffer] = []
    encoder(message.__class__, version)(message, out)
    return b"".join(out)


def decode(cls: type[M], buf: Buffer, version: int, pos: int = 0) -> M:
    """The message at a position of a buffer; bytes after it are ignored. Raises MalformedError."""
    return decoder(cls, version)(buf, pos)[0]


def _functions(cls: type[Message], kind: str) -> dict[int, Any]:
    found: dict[int, Any] | None = cls.__dict__.get(kind)
    if found is None:
        found = {}
        type.__setattr__(cls, kind, found)
    return found
