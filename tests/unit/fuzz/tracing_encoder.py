"""Encodes a message field by field and records the positions of its lengths and counts."""

from struct import Struct as Format
from typing import Any

from protocol.schema.layout import is_flexible_version, struct_layout
from protocol.schema.message import Message, StructType
from protocol.schema.primitives import FIXED, LENGTH_FORMATS
from protocol.varints import encode_uvarint
from tests.unit.fuzz.damage import Spot


class TracingEncoder:
    """The encoding of a message with its spots. Slow and simple; the generated encoder returns the same bytes."""

    def __init__(self, message: Message, version: int) -> None:
        self.data = bytearray()
        self.spots: list[Spot] = []
        self._version = version
        self._struct(message, type(message), is_flexible_version(type(message), version))

    def _number(self, value: int, format: str) -> None:
        raw = encode_uvarint(value) if format == "u" else Format(f">{format}").pack(value)
        kind = {"u": "uvarint", "h": "i16", "i": "i32", "b": "i8"}[format]
        self.spots.append(Spot(len(self.data), len(raw), kind))
        self.data += raw

    def _struct(self, value: Any, cls: StructType, flexible: bool) -> None:
        layout = struct_layout(cls, self._version, flexible)
        for field in layout.plain:
            self._value(getattr(value, field.name), field.row.type, field.nullable, field.flexible)
        if flexible:
            tagged = [field for field in layout.tagged if getattr(value, field.name) != field.row.new_default()]
            self._number(len(tagged), "u")
            for field in tagged:
                self._number(field.row.tag, "u")
                self._tag(getattr(value, field.name), field.row.type, field.nullable)

    def _tag(self, value: Any, kind: Any, nullable: bool) -> None:
        """Encode a tagged field; its value separately, since its size is before it."""
        outer, outer_spots = self.data, self.spots
        self.data, self.spots = bytearray(), []
        if nullable and isinstance(kind, StructType):
            self._number(0 if value is None else 1, "u")
            if value is not None:
                self._struct(value, kind, True)
        else:
            self._value(value, kind, nullable, True)
        inner, inner_spots = self.data, self.spots
        self.data, self.spots = outer, outer_spots
        self._number(len(inner), "u")
        start = len(self.data)
        self.spots += [spot._replace(pos=spot.pos + start) for spot in inner_spots]
        self.data += inner

    def _value(self, value: Any, kind: Any, nullable: bool, flexible: bool) -> None:
        if isinstance(kind, StructType):
            if nullable:
                self._number(-1 if value is None else 1, "b")
            if value is not None:
                self._struct(value, kind, flexible)
        elif isinstance(kind, list):
            self._size(None if value is None else len(value), "i", flexible)
            for item in value or ():
                self._value(item, kind[0], False, flexible)
        elif kind in FIXED:
            self.data += Format(f">{FIXED[kind]}").pack(value)
        else:
            raw = value.encode() if isinstance(value, str) else value
            self._size(None if raw is None else len(raw), LENGTH_FORMATS[kind], flexible)
            self.data += raw or b""

    def _size(self, size: int | None, format: str, flexible: bool) -> None:
        if flexible:
            self._number(0 if size is None else size + 1, "u")
        else:
            self._number(-1 if size is None else size, format)
