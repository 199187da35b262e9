"""Decodes batches of records, in any process: the driver sends a DecodeTask to it.

A record that is not decoded stays in the table with its bytes and null in the decoded columns, so that the table has
every offset; it is also a dead letter. Without the bytes of values it is only a dead letter.

A record whose schema the table does not have yet is missing: the process that owns the table learns the schema
(topic_decoding), and then decodes the batch again.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from kbroker.archive.decoding.codecs import compile_schema
from kbroker.archive.decoding.column_types import COLUMNS, widen
from kbroker.archive.decoding.dead_letters import make_dead_rows
from kbroker.archive.decoding.errors import DecodeError
from kbroker.archive.decoding.inference import infer_text
from kbroker.archive.decoding.json_lines import decode_lines
from kbroker.archive.decoding.json_schema import parse_json
from kbroker.archive.decoding.protobuf import message_name, read_message_path
from kbroker.archive.decoding.settings import OWN, DecodeSettings, Decoding, Schemas, SchemaText

MAX_REASON = 500  # characters
NOT_DECODED = "is not decoded: "  # in each reason
# Records begin with a zero byte and the id of their schema in a registry.
_MAGIC, _PREFIX_BYTES = 0, 5


@dataclass(frozen=True)
class DecodeTask:
    """All that a process must know to decode the records of a topic. Can be pickled."""

    settings: DecodeSettings
    schemas: Schemas
    types: Mapping[str, pa.DataType]  # of the decoded columns that the table has, by what they are decoded from
    # Why ids have no schema, for those that the registry does not have.
    absent: Mapping[int, str] = field(default_factory=dict)


class MissingSchema(NamedTuple):
    """A schema that the table does not have yet."""

    source: str  # value or key
    number: int  # the id in the registry, or OWN
    inferred: str = ""  # the text of an inferred schema
    path: tuple[int, ...] = ()  # of a protobuf message


class Decoded(NamedTuple):
    """A batch, decoded."""

    rows: pa.RecordBatch  # for the table
    dead: pa.RecordBatch | None  # rows as they were, with their reasons
    missing: frozenset[MissingSchema]  # if there are any, ignore `rows` and `dead`


class Decoder:
    """Decodes the batches of one topic."""

    def __init__(self, task: DecodeTask) -> None:
        self._keep_raw = task.settings.keep_raw
        self._columns = [
            _Column(
                source,
                decoding,
                dict(task.schemas.get(source, {})),
                task.types.get(source),
                task.absent,
            )
            for source, decoding in task.settings.decodings.items()
        ]

    def decode(self, batch: pa.RecordBatch, now_ms: int) -> Decoded:
        """Return the batch with the decoded columns after its own."""
        reasons: dict[int, str] = {}
        missing: set[MissingSchema] = set()
        rows = batch
        for column in self._columns:
            values, failures = column.decode(batch.column(column.source), missing)
            if values is not None:
                rows = rows.append_column(COLUMNS[column.source], values)
            for row, reason in failures.items():
                text = f"the {column.source} {NOT_DECODED}{reason}"[:MAX_REASON]
                reasons[row] = f"{reasons[row]}; {text}" if row in reasons else text
        if missing:
            return Decoded(batch, None, frozenset(missing))
        dead = None
        if reasons:
            failed = sorted(reasons)
            dead = make_dead_rows(batch.take(pa.array(failed)), [reasons[row] for row in failed], now_ms)
        return Decoded(rows if self._keep_raw else _without_values(rows, reasons), dead, frozenset())


def _without_values(rows: pa.RecordBatch, failed: Iterable[int]) -> pa.RecordBatch:
    nulls = pa.nulls(rows.num_rows, rows.schema.field("value").type)
    rows = rows.set_column(rows.schema.get_field_index("value"), "value", nulls)
    kept = sorted(set(range(rows.num_rows)) - set(failed))
    return rows if len(kept) == rows.num_rows else rows.take(pa.array(kept, pa.int64()))


class _Column:
    """Decodes the keys or the values of a topic."""

    def __init__(
        self,
        source: str,
        decoding: Decoding,
        schemas: Mapping[int, SchemaText],
        kind: pa.DataType | None,
        absent: Mapping[int, str],
    ) -> None:
        self.source = source
        self._decoding = decoding
        self._schemas = schemas
        self._type = kind
        self._absent = absent
        self._plain_types: dict[int, pa.DataType | None] = {}
        # By number and path: how to decode, or why not.
        self._codecs: dict[tuple[int, tuple[int, ...]], Callable[[bytes], Any] | DecodeError] = {}

    def decode(self, column: pa.Array, missing: set[MissingSchema]) -> tuple[pa.Array | None, Mapping[int, str]]:
        """Return the decoded column (None if its type is not known yet), and reasons by row. Adds missing schemas."""
        if self._decoding.format == "json" and not self._decoding.registry and OWN not in self._schemas:
            return None, self._infer(column, missing)
        at_once = self._decode_lines(column)
        if at_once is not None:
            return at_once, {}
        values: list[Any] = []
        reasons: dict[int, str] = {}
        for row, data in enumerate(column.to_pylist()):
            value = None
            if data is not None:
                try:
                    value = self._decode_record(data, missing)
                except Exception as error:  # the libraries of the formats have no common exception
                    reasons[row] = _text_of(error)
            values.append(value)
        if self._type is None:
            return None, reasons
        return _make_array(values, self._type, reasons), reasons

    def _infer(self, column: pa.Array, missing: set[MissingSchema]) -> dict[int, str]:
        documents, reasons = [], {}
        for row, data in enumerate(column.to_pylist()):
            try:
                documents.append(None if data is None else parse_json(data))
            except DecodeError as error:
                reasons[row] = str(error)
        text = infer_text(documents)
        if text is not None:
            missing.add(MissingSchema(self.source, OWN, text))
        return reasons

    def _decode_lines(self, column: pa.Array) -> pa.Array | None:
        """Decode all records at once, if they are JSON of one schema; None if that is not possible."""
        if self._decoding.format != "json" or self._type is None or column.null_count == len(column):
            return None
        number = OWN
        if self._decoding.registry:
            prefix, *others = pc.unique(pc.binary_slice(column, 0, _PREFIX_BYTES)).drop_null().to_pylist()
            if others or len(prefix) < _PREFIX_BYTES or prefix[0] != _MAGIC:
                return None
            number = int.from_bytes(prefix[1:], "big")
            column = pc.binary_slice(column, _PREFIX_BYTES)
        if number not in self._plain_types:
            self._plain_types[number] = self._plain_type(number)
        kind = self._plain_types[number]
        values = None if kind is None else decode_lines(column, kind)
        try:
            return None if values is None else values.cast(self._type)
        except pa.ArrowException:  # the column has the fields in another order
            return None

    def _plain_type(self, number: int) -> pa.DataType | None:
        """Return the type of a schema whose records can be decoded at once."""
        if number in self._schemas and callable(self._compile(number, ())):
            codec = compile_schema(self._decoding.format, self._schemas[number])
            return codec.type if codec.is_plain_json else None
        return None

    def _decode_record(self, data: bytes, missing: set[MissingSchema]) -> Any:
        number, path, data = split_record(self._decoding, data)
        decode = self._codecs.get((number, path))
        if decode is None:
            if number not in self._schemas:
                return self._miss(MissingSchema(self.source, number, path=path), missing)
            decode = self._codecs[number, path] = self._compile(number, path)
        if isinstance(decode, DecodeError):
            raise decode
        return decode(data)

    def _miss(self, schema: MissingSchema, missing: set[MissingSchema]) -> None:
        if schema.number in self._absent:
            raise DecodeError(self._absent[schema.number])
        missing.add(schema)

    def _compile(self, number: int, path: tuple[int, ...]) -> Callable[[bytes], Any] | DecodeError:
        """Return how to decode records of a schema, or why the column cannot have them."""
        try:
            schema = with_message(self._schemas[number], path)
            codec = compile_schema(self._decoding.format, schema)
            if self._type is not None and widen(self._type, codec.type) == self._type:
                return codec.decode
            name = f"its message {schema.message}" if schema.message else "it"
            raise DecodeError(f"{name} has fields that the column does not have")
        except DecodeError as error:
            return error if number == OWN else DecodeError(f"schema {number}: {error}")


class SplitRecord(NamedTuple):
    """A record in the wire format of registries, if it is decoded with one."""

    number: int  # of the schema
    path: tuple[int, ...]  # of the protobuf message in the schema; empty for other formats
    data: bytes  # the rest


def split_record(decoding: Decoding, data: bytes) -> SplitRecord:
    """Return which schema a record has. Raises DecodeError."""
    if not decoding.registry:
        return SplitRecord(OWN, (), data)
    if len(data) < _PREFIX_BYTES or data[0] != _MAGIC:
        raise DecodeError("it does not begin with the id of a schema in a registry (a zero byte and 4 bytes)")
    number, rest = int.from_bytes(data[1:_PREFIX_BYTES], "big"), data[_PREFIX_BYTES:]
    return SplitRecord(number, *(read_message_path(rest) if decoding.format == "protobuf" else ((), rest)))


def with_message(schema: SchemaText, path: tuple[int, ...]) -> SchemaText:
    """Return the schema for the protobuf message with a path. Raises DecodeError."""
    return schema._replace(message=message_name(schema, path)) if path else schema


def _make_array(values: Sequence[Any], kind: pa.DataType, reasons: dict[int, str]) -> pa.Array:
    """Return the values as an array, and null for those that the type cannot hold. Adds their reasons."""
    try:
        return pa.array(values, kind)
    except Exception:  # OverflowError, UnicodeError, ...
        possible = []
        for row, value in enumerate(values):
            try:
                pa.array([value], kind)
                possible.append(value)
            except Exception as error:
                reasons[row] = _text_of(error)
                possible.append(None)
        return pa.array(possible, kind)


def _text_of(error: Exception) -> str:
    text = str(error).partition("\n")[0]
    return text if isinstance(error, DecodeError) or not text else f"{text} ({type(error).__name__})"
