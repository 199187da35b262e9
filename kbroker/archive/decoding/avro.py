"""Avro: schemas as Arrow types, and records as values of these types.

A union of null and one type is that type; any other union is a string of JSON, as is a record within itself. Enums and
UUIDs are strings. Times are in microseconds.
"""

import io
import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import fastavro
import pyarrow as pa

from kbroker.archive.decoding.column_types import MAX_DECIMAL_DIGITS, TIME, TIMESTAMP, TIMESTAMPTZ
from kbroker.archive.decoding.errors import DecodeError
from kbroker.archive.decoding.json_text import to_json_text
from kbroker.archive.decoding.settings import SchemaText

Convert = Callable[[Any], Any]

_PRIMITIVES = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "bytes": pa.binary(),
}
_LOGICAL = {
    ("int", "date"): pa.date32(),
    ("int", "time-millis"): TIME,
    ("long", "time-micros"): TIME,
    ("long", "timestamp-millis"): TIMESTAMPTZ,
    ("long", "timestamp-micros"): TIMESTAMPTZ,
    ("long", "local-timestamp-millis"): TIMESTAMP,
    ("long", "local-timestamp-micros"): TIMESTAMP,
}


class _Typed(NamedTuple):
    """A type, and what converts the values of fastavro to values of the type; None: nothing."""

    type: pa.DataType
    convert: Convert | None = None


def compile_avro(schema: SchemaText) -> tuple[pa.DataType, Callable[[bytes], Any]]:
    """Return the type of a schema and the function that decodes a record. Raises DecodeError."""
    named: dict[str, Any] = {}
    try:
        for text in schema.texts:
            parsed = fastavro.parse_schema(json.loads(text), named)
        kind, convert = _compile(parsed, named, ())
    except (ValueError, KeyError, TypeError, RecursionError, fastavro.schema.SchemaParseException) as error:
        raise DecodeError(f"the Avro schema is invalid ({error!r})") from None

    def decode(data: bytes) -> Any:
        stream = io.BytesIO(data)
        value = fastavro.schemaless_reader(stream, parsed, None)
        if stream.tell() != len(data):
            raise DecodeError(f"{len(data) - stream.tell()} bytes follow the record: it has another schema")
        return value if convert is None else convert(value)

    return kind, decode


def _compile(schema: Any, named: Mapping[str, Any], outer: tuple[str, ...]) -> _Typed:
    if isinstance(schema, list):
        return _compile_union(schema, named, outer)
    if isinstance(schema, str):
        if schema in _PRIMITIVES:
            return _Typed(_PRIMITIVES[schema])
        if schema == "null":
            return _JSON_TEXT
        return _JSON_TEXT if schema in outer else _compile(named[schema], named, outer)
    name = schema["type"]
    if name in ("record", "error"):
        return _compile_record(schema, named, (*outer, schema["name"]))
    if name == "array":
        item = _compile(schema["items"], named, outer)
        return _Typed(pa.list_(item.type), _each(item.convert))
    if name == "map":
        item = _compile(schema["values"], named, outer)
        return _Typed(pa.map_(pa.string(), item.type), _each_value(item.convert))
    if name == "enum":
        return _Typed(pa.string())
    logical = schema.get("logicalType")
    if logical == "uuid":
        return _Typed(pa.string(), lambda value: None if value is None else str(value))
    if logical == "decimal" and name in ("bytes", "fixed"):
        if schema["precision"] > MAX_DECIMAL_DIGITS:
            return _Typed(pa.string(), lambda value: None if value is None else format(value, "f"))
        return _Typed(pa.decimal128(schema["precision"], schema.get("scale", 0)))
    if name == "fixed":
        return _Typed(pa.binary(schema["size"]))
    if (name, logical) in _LOGICAL:
        return _Typed(_LOGICAL[name, logical])
    return _compile(name, named, outer)


def _compile_union(branches: list[Any], named: Mapping[str, Any], outer: tuple[str, ...]) -> _Typed:
    others = [branch for branch in branches if branch != "null"]
    return _compile(others[0], named, outer) if len(others) == 1 else _JSON_TEXT


def _compile_record(schema: Any, named: Mapping[str, Any], outer: tuple[str, ...]) -> _Typed:
    fields = {field["name"]: _compile(field["type"], named, outer) for field in schema["fields"]}
    if not fields:
        return _JSON_TEXT  # Parquet has no struct without fields
    converts = [(name, field.convert) for name, field in fields.items() if field.convert is not None]

    def convert(value: Any) -> Any:
        if value is not None:
            for name, convert_field in converts:
                value[name] = convert_field(value[name])
        return value

    return _Typed(pa.struct([(name, field.type) for name, field in fields.items()]), convert if converts else None)


def _each(convert: Convert | None) -> Convert | None:
    if convert is None:
        return None
    return lambda value: None if value is None else [convert(item) for item in value]


def _each_value(convert: Convert | None) -> Convert | None:
    if convert is None:
        return None
    return lambda value: None if value is None else {name: convert(item) for name, item in value.items()}


_JSON_TEXT = _Typed(pa.string(), lambda value: None if value is None else to_json_text(value))
