"""Requests of every API in every version, made from the schemas, and where in them the counts and lengths are."""

from collections.abc import Iterator
from struct import Struct
from typing import Any, NamedTuple

from kbroker.api.dispatch import FIRST_SUPPORTED_VERSION
from protocol.apis import APIS, ApiKey
from protocol.framing import encode_frame, encode_request_header
from protocol.messages import message_classes
from protocol.schema.message import Message, Row, StructType
from protocol.schema.primitives import ZERO_UUID
from protocol.varints import encode_uvarint

I16, I32 = Struct(">h"), Struct(">i")
FIXED = {"bool": 1, "int8": 1, "int16": 2, "uint16": 2, "int32": 4, "uint32": 4, "int64": 8, "float64": 8}
UUID_SIZE = len(ZERO_UUID)


class Mark(NamedTuple):
    """A count or a length: of an array, a string, bytes or tagged fields; where it is, and what it is called."""

    kind: str
    pos: int
    size: int
    name: str


class Shape:
    """A request body with one element in every array and nothing in every string."""

    def __init__(self, key: ApiKey, version: int, empty: bool = False) -> None:
        self.key = key
        self.version = version
        self.flexible = version >= APIS[key].flexible_from
        self.marks: list[Mark] = []
        self._empty = empty
        self._out = bytearray()
        if self.flexible:
            self._mark("tags", "header", b"\0")
        self._header = len(self._out)
        self._struct(message_classes(key)[0], APIS[key].name)

    @property
    def body(self) -> bytes:
        """With the tags of the header before it, where there are any."""
        return bytes(self._out)

    def framed(self, body: bytes) -> bytes:
        header = encode_request_header(self.key, self.version, 1, "hostile")
        return encode_frame(header[: len(header) - self.flexible], body)

    def changed(self, mark: Mark, value: bytes, following: bytes = b"") -> bytes:
        """A frame with another count or length in its place, and more after it."""
        body = self.body
        return self.framed(body[: mark.pos] + value + following + body[mark.pos + mark.size :])

    def _mark(self, kind: str, name: str, value: bytes) -> None:
        self.marks.append(Mark(kind, len(self._out), len(value), name))
        self._out += value

    def _struct(self, cls: StructType, path: str) -> None:
        for name, row in cls.__rows__.items():
            if row.is_in(self.version) and row.tag < 0:
                self._field(row, f"{path}.{name}")
        if self.flexible:
            self._mark("tags", path, b"\0")

    def _field(self, row: Row, name: str) -> None:
        if name.endswith(".acks"):
            # With 0 there would be no answer.
            self._out += I16.pack(-1)
        elif isinstance(row.type, list):
            count = 0 if self._empty else 1
            self._mark("array", name, encode_uvarint(count + 1) if self.flexible else I32.pack(count))
            if count:
                self._value(row.type[0], name)
        else:
            self._value(row.type, name)

    def _value(self, kind: Any, name: str) -> None:
        if isinstance(kind, StructType):
            self._struct(kind, name)
        elif kind == "string":
            self._mark("string", name, b"\1" if self.flexible else I16.pack(0))
        elif kind in ("bytes", "records"):
            self._mark("bytes", name, b"\1" if self.flexible else I32.pack(0))
        elif kind == "uuid":
            self._out += ZERO_UUID
        else:
            self._out += bytes(FIXED[kind])


def all_shapes() -> Iterator[Shape]:
    for api in APIS.values():
        for version in range(FIRST_SUPPORTED_VERSION.get(api.key, api.min_version), api.max_version + 1):
            yield Shape(api.key, version)


def request_class(key: ApiKey) -> type[Message]:
    return message_classes(key)[0]
