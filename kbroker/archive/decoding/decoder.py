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

from kbroker.archive.dead_letters import make_dead_rows
from kbroker.archive.decoding.codecs import compile_schema
from kbroker.archive.decoding.column_types import COLUMNS, widen
from kbroker.archive.decoding.errors import DecodeError
from kbroker.archive.decoding.inference import infer_text
from kbroker.archive.decoding.json_schema import parse_json
from kbroker.archive.decoding.settings import OWN, DecodeSettings, Decoding, Schemas

MAX_REASON = 500  # characters
_MAGIC = 0


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
                text = f"the {column.source} is not decoded: {reason}"[:MAX_REASON]
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
        schemas: Mapping[int, Any],
        kind: pa.DataType | None,
        absent: Mapping[int, str],
    ) -> None:
        self.source = source
        self._decoding = decoding
        self._schemas = schemas
        self._type = kind
        self._absent = absent
        # By number: how to decode, or why not.
        self._codecs: dict[int, Callable[[bytes], Any] | DecodeError] = {}

    def decode(self, column: pa.Array, missing: set[MissingSchema]) -> tuple[pa.Array | None, Mapping[int, str]]:
        """Return the decoded column (None if its type is not known yet), and reasons by row. Adds missing schemas."""
        if self._decoding.format == "json" and not self._decoding.registry and OWN not in self._schemas:
            return None, self._infer(column, missing)
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

    def _decode_record(self, data: bytes, missing: set[MissingSchema]) -> Any:
        number = OWN
        if self._decoding.registry:
            if len(data) < 5 or data[0] != _MAGIC:
                raise DecodeError("it does not begin with the id of a schema in a registry (a zero byte and 4 bytes)")
            number, data = int.from_bytes(data[1:5], "big"), data[5:]
        decode = self._codecs.get(number)
        if decode is None:
            if number not in self._schemas:
                return self._miss(number, missing)
            decode = self._codecs[number] = self._compile(number)
        if isinstance(decode, DecodeError):
            raise decode
        return decode(data)

    def _miss(self, number: int, missing: set[MissingSchema]) -> None:
        if number in self._absent:
            raise DecodeError(self._absent[number])
        missing.add(MissingSchema(self.source, number))

    def _compile(self, number: int) -> Callable[[bytes], Any] | DecodeError:
        """Return how to decode records of a schema, or why the column cannot have them."""
        try:
            codec = compile_schema(self._decoding.format, self._schemas[number])
            if self._type is not None and widen(self._type, codec.type) == self._type:
                return codec.decode
            return DecodeError("the column was changed by another program")
        except DecodeError as error:
            return error if number == OWN else DecodeError(f"schema {number}: {error}")


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
