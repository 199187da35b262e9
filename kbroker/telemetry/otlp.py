"""Reads the fields of metrics in OTLP (OpenTelemetry) that the metrics page needs. The format is Protocol Buffers.

It is not read with a library: a push of a few kilobytes may decompress to two million empty messages, for which that
of Google keeps the interpreter for a second and takes 140 MiB. Here the loops pause, and nothing is kept.

The numbers are those of opentelemetry/proto/metrics/v1/metrics.proto.
"""

from collections.abc import Iterator
from struct import Struct
from typing import NamedTuple

from kbroker.common import Buffer
from kbroker.runtime.turns import yield_if_due
from protocol.errors import MalformedError

# A push of 10,000 samples has about 250,000.
MAX_FIELDS = 500_000
# Of a client or a data point; further ones are ignored.
MAX_ATTRIBUTES = 32

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_DOUBLE, _SFIXED64 = Struct("<d"), Struct("<q")
_DELTA, _NO_RECORDED_VALUE = 1, 1

Attributes = tuple[tuple[str, str], ...]


class DataPoint(NamedTuple):
    """A value of a gauge or a sum. `is_delta`: it is the change since the last push, else the total."""

    name: str
    is_counter: bool
    is_delta: bool
    value: float
    of_client: Attributes
    attributes: Attributes


class OtlpReader:
    """The data points of a MetricsData message, except those of histograms and summaries. Raises MalformedError."""

    def __init__(self, data: Buffer) -> None:
        self._data = bytes(data)
        self._fields_left = MAX_FIELDS

    def data_points(self) -> Iterator[DataPoint]:
        for number, resource_metrics in self._messages(0, len(self._data)):
            if number == 1:
                of_client: Attributes = ()
                for field, part in self._messages(*resource_metrics):
                    if field == 1:
                        of_client = self._attributes(part, 1)
                    elif field == 2:
                        yield from self._scope(part, of_client)

    def _scope(self, span: tuple[int, int], of_client: Attributes) -> Iterator[DataPoint]:
        for number, metric in self._messages(*span):
            if number == 2:
                parts = {field: part for field, part in self._messages(*metric) if field in (1, 5, 7)}
                start, end = parts.get(1, (0, 0))
                name = str(self._data[start:end], "utf-8", "replace")
                gauge, total = parts.get(5), parts.get(7)
                if gauge is not None:
                    yield from self._points(gauge, name, of_client, False, False)
                if total is not None:
                    options = {
                        field: value
                        for field, wire, value, _ in self._fields(*total)
                        if wire == _VARINT and field in (2, 3)
                    }
                    yield from self._points(total, name, of_client, bool(options.get(3)), options.get(2) == _DELTA)

    def _points(
        self, span: tuple[int, int], name: str, of_client: Attributes, is_counter: bool, is_delta: bool
    ) -> Iterator[DataPoint]:
        for number, point in self._messages(*span):
            if number == 1:
                value, flags = 0.0, 0
                for field, wire, found, _ in self._fields(*point):
                    if field == 4 and wire == _FIXED64:
                        value = _DOUBLE.unpack_from(self._data, found)[0]
                    elif field == 6 and wire == _FIXED64:
                        value = float(_SFIXED64.unpack_from(self._data, found)[0])
                    elif field == 8 and wire == _VARINT:
                        flags = found
                if not flags & _NO_RECORDED_VALUE:
                    yield DataPoint(name, is_counter, is_delta, value, of_client, self._attributes(point, 7))

    def _attributes(self, span: tuple[int, int], number: int) -> Attributes:
        """Return the attributes in the field `number` of a message; those that are not text or numbers are empty."""
        found: list[tuple[str, str]] = []
        for field, attribute in self._messages(*span):
            if field == number and len(found) < MAX_ATTRIBUTES:
                parts = {field: part for field, part in self._messages(*attribute) if field in (1, 2)}
                start, end = parts.get(1, (0, 0))
                found.append((str(self._data[start:end], "utf-8", "replace"), self._text(parts.get(2, (0, 0)))))
        return tuple(found)

    def _text(self, span: tuple[int, int]) -> str:
        for field, wire, start, end in self._fields(*span):
            if field == 1 and wire == _BYTES:
                return str(self._data[start:end], "utf-8", "replace")
            if field == 2 and wire == _VARINT:
                return "true" if start else "false"
            if field == 3 and wire == _VARINT:
                return str(start - (1 << 64) if start >> 63 else start)
            if field == 4 and wire == _FIXED64:
                return str(_DOUBLE.unpack_from(self._data, start)[0])
        return ""

    def _messages(self, pos: int, end: int) -> Iterator[tuple[int, tuple[int, int]]]:
        """Return the fields with messages or strings: (number, (start, end))."""
        for field, wire, start, stop in self._fields(pos, end):
            if wire == _BYTES:
                yield field, (start, stop)

    def _fields(self, pos: int, end: int) -> Iterator[tuple[int, int, int, int]]:
        """Return (number, wire type, value of a varint or start of others, end)."""
        while pos < end:
            yield_if_due()
            self._fields_left -= 1
            if self._fields_left < 0:
                raise MalformedError(f"more than {MAX_FIELDS} fields")
            key, pos = self._varint(pos, end)
            wire, value = key & 7, pos
            if wire == _VARINT:
                value, pos = self._varint(pos, end)
            elif wire == _BYTES:
                size, value = self._varint(pos, end)
                pos = value + size
            elif wire in (_FIXED64, _FIXED32):
                pos += 8 if wire == _FIXED64 else 4
            else:
                raise MalformedError(f"wire type {wire}")
            if pos > end:
                raise MalformedError("a field exceeds its message")
            yield key >> 3, wire, value, pos

    def _varint(self, pos: int, end: int) -> tuple[int, int]:
        """Return an unsigned number of at most 64 bits, and the position after it."""
        data, result = self._data, 0
        for shift in range(0, 70, 7):
            if pos >= end:
                raise MalformedError("a number is cut off")
            byte = data[pos]
            pos += 1
            result |= (byte & 0x7F) << shift
            if byte < 0x80:
                return result & 0xFFFF_FFFF_FFFF_FFFF, pos
        raise MalformedError("a number of more than 10 bytes")
