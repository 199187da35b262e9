"""Requests of every API in every version, built from the schemas, with the positions of their counts and lengths."""

from collections.abc import Iterator
from struct import Struct
from typing import Any, NamedTuple

from protocol.apis import CLIENT_LISTENER_APIS, ApiKey
from protocol.framing import encode_frame, encode_request_header
from protocol.messages import message_classes
from protocol.schema.message import Message, Row, StructType
from protocol.schema.primitives import ZERO_UUID
from protocol.varints import encode_uvarint

I16, I32 = Struct(">h"), Struct(">i")
FIXED = {"bool": 1, "int8": 1, "int16": 2, "uint16": 2, "int32": 4, "uint32": 4, "int64": 8, "float64": 8}
UUID_SIZE = len(ZERO_UUID)


class LengthField(NamedTuple):
    """The count or length of an array, a string, bytes or tagged fields; its position and name."""

    kind: str
    pos: int
    size: int
    name: str


class RequestTemplate:
    """A request body with one element in every array and empty strings."""

    def __init__(self, key: ApiKey, version: int, empty: bool = False) -> None:
        self.key = key
        self.version = version
        self.flexible = version >= CLIENT_LISTENER_APIS[key].flexible_from
        self.length_fields: list[LengthField] = []
        self._empty = empty
        self._out = bytearray()
        if self.flexible:
            self._length_field("tags", "header", b"\0")
        self._header = len(self._out)
        self._struct(message_classes(key)[0], CLIENT_LISTENER_APIS[key].name)

    @property
    def body(self) -> bytes:
        """The body, preceded by the tagged fields of the header in flexible versions."""
        return bytes(self._out)

    def frame(self, body: bytes) -> bytes:
        header = encode_request_header(self.key, self.version, 1, "hostile")
        return encode_frame(header[: len(header) - self.flexible], body)

    def frame_with(self, field: LengthField, value: bytes, following: bytes = b"") -> bytes:
        """Return a frame in which `value` replaces a count or length, with `following` inserted after it."""
        body = self.body
        return self.frame(body[: field.pos] + value + following + body[field.pos + field.size :])

    def _length_field(self, kind: str, name: str, value: bytes) -> None:
        self.length_fields.append(LengthField(kind, len(self._out), len(value), name))
        self._out += value

    def _struct(self, cls: StructType, path: str) -> None:
        for name, row in cls.__rows__.items():
            if row.is_in(self.version) and row.tag < 0:
                self._field(row, f"{path}.{name}")
        if self.flexible:
            self._length_field("tags", path, b"\0")

    def _field(self, row: Row, name: str) -> None:
        if name.endswith(".acks"):
            # With acks=0 there is no response.
            self._out += I16.pack(-1)
        elif isinstance(row.type, list):
            count = 0 if self._empty else 1
            self._length_field("array", name, encode_uvarint(count + 1) if self.flexible else I32.pack(count))
            if count:
                self._value(row.type[0], name)
        else:
            self._value(row.type, name)

    def _value(self, kind: Any, name: str) -> None:
        if isinstance(kind, StructType):
            self._struct(kind, name)
        elif kind == "string":
            self._length_field("string", name, b"\1" if self.flexible else I16.pack(0))
        elif kind in ("bytes", "records"):
            self._length_field("bytes", name, b"\1" if self.flexible else I32.pack(0))
        elif kind == "uuid":
            self._out += ZERO_UUID
        else:
            self._out += bytes(FIXED[kind])


def all_request_templates() -> Iterator[RequestTemplate]:
    for api in CLIENT_LISTENER_APIS.values():
        for version in filter(api.serves, range(api.max_version + 1)):
            yield RequestTemplate(api.key, version)


def request_class(key: ApiKey) -> type[Message]:
    return message_classes(key)[0]
