"""JSON: JSON Schemas as Arrow types, and documents as values of these types.

What a schema leaves open (several types, no properties, a reference to itself) is a string of JSON. Of a schema only
the types and names matter: a document with a field that the schema does not have, or of another type, is not decoded,
but ranges, patterns and required fields are not checked.
"""

import json
from collections.abc import Callable, Mapping
from datetime import date, datetime
from typing import Any, NamedTuple

import pyarrow as pa

from kbroker.archive.decoding.column_types import TIMESTAMPTZ
from kbroker.archive.decoding.errors import DecodeError
from kbroker.archive.decoding.json_text import to_json_text
from kbroker.archive.decoding.settings import SchemaText

_EXACT_FLOAT = 1 << 53


class _Typed(NamedTuple):
    """A type, and what converts JSON values to it. Raises DecodeError for values of other types."""

    type: pa.DataType
    convert: Callable[[Any], Any]
    is_plain: bool = False  # Arrow's own parser converts the same documents in the same way


class JsonCodec(NamedTuple):
    """A compiled schema."""

    type: pa.DataType
    decode: Callable[[bytes], Any]
    is_plain: bool  # decode_lines can decode the documents


def compile_json(schema: SchemaText) -> JsonCodec:
    """Return the type of a schema and the function that decodes a document. Raises DecodeError."""
    try:
        root = json.loads(schema.texts[-1])
        typed = _compile(root, root, ())
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DecodeError(f"the JSON schema is invalid ({error!r})") from None

    def decode(data: bytes) -> Any:
        value = parse_json(data)
        return None if value is None else typed.convert(value)

    return JsonCodec(typed.type, decode, typed.is_plain)


def parse_json(data: bytes) -> Any:
    """Return the value of a JSON document. Raises DecodeError."""
    try:
        return json.loads(data.decode(), object_pairs_hook=_without_duplicates, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise DecodeError(f"it is not JSON ({error})") from None


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("an object has two fields of one name")
    return result


def _refuse_constant(text: str) -> Any:
    raise ValueError(f"{text} is not a number of JSON")


def _compile(schema: Any, root: Any, outer: tuple[str, ...]) -> _Typed:
    if isinstance(schema, bool):
        return JSON_TEXT
    if "$ref" in schema:
        reference = schema["$ref"]
        return JSON_TEXT if reference in outer else _compile(_resolve(reference, root), root, (*outer, reference))
    for name in ("oneOf", "anyOf", "allOf"):
        if name in schema:
            others = [item for item in schema[name] if item != {"type": "null"}]
            return _compile(others[0], root, outer) if len(others) == 1 else JSON_TEXT
    kind = _type_of(schema)
    if kind == "object":
        return _compile_object(schema, root, outer)
    if kind == "array":
        return _compile_array(schema, root, outer)
    if kind == "string":
        return _STRINGS.get(schema.get("format", ""), _STRING)
    return _SCALARS.get(kind, JSON_TEXT)


def _type_of(schema: Mapping[str, Any]) -> str:
    """Return the type that is not null; empty if there are several or none."""
    found = schema.get("type", [])
    names = {found} if isinstance(found, str) else {name for name in found if name != "null"}
    if names == {"integer", "number"}:
        return "number"
    if not names and "properties" in schema:
        return "object"
    return names.pop() if len(names) == 1 else ""


def _resolve(reference: str, root: Any) -> Any:
    if not reference.startswith("#"):
        raise ValueError(f"the reference {reference} is to another document")
    target = root
    for step in filter(None, reference.removeprefix("#").split("/")):
        target = target[step.replace("~1", "/").replace("~0", "~")]
    return target


def _compile_object(schema: Mapping[str, Any], root: Any, outer: tuple[str, ...]) -> _Typed:
    properties, others = schema.get("properties") or {}, schema.get("additionalProperties")
    if properties and all(is_column_name(name) for name in properties) and not isinstance(others, dict):
        return _struct({name: _compile(item, root, outer) for name, item in properties.items()})
    if not properties and isinstance(others, dict) and "patternProperties" not in schema:
        item = _compile(others, root, outer)
        return _Typed(pa.map_(pa.string(), item.type), lambda value: _convert_map(value, item.convert))
    return JSON_TEXT


def is_column_name(name: str) -> bool:
    """Return whether a field may have the name: a dot separates the names of a path."""
    return bool(name) and "." not in name


def _struct(fields: Mapping[str, _Typed]) -> _Typed:
    converts = {name: field.convert for name, field in fields.items()}

    def convert(value: Any) -> Any:
        if type(value) is not dict:
            raise _mismatch("an object", value)
        for name, item in value.items():
            if item is not None:
                convert_field = converts.get(name)
                if convert_field is None:
                    raise DecodeError(f"{name}: the schema does not have this field")
                try:
                    value[name] = convert_field(item)
                except DecodeError as error:
                    raise error.within(name) from None
        return value

    is_plain = all(field.is_plain for field in fields.values())
    return _Typed(pa.struct([(name, field.type) for name, field in fields.items()]), convert, is_plain)


def _convert_map(value: Any, convert: Callable[[Any], Any]) -> Any:
    if type(value) is not dict:
        raise _mismatch("an object", value)
    return {name: None if item is None else convert(item) for name, item in value.items()}


def _compile_array(schema: Mapping[str, Any], root: Any, outer: tuple[str, ...]) -> _Typed:
    items = schema.get("items")
    item = _compile(items, root, outer) if isinstance(items, dict) else JSON_TEXT

    def convert(value: Any) -> Any:
        if type(value) is not list:
            raise _mismatch("an array", value)
        try:
            return [None if element is None else item.convert(element) for element in value]
        except DecodeError as error:
            raise error.within("[]") from None

    return _Typed(pa.list_(item.type), convert, item.is_plain)


def _to_integer(value: Any) -> int:
    if type(value) is int and -(1 << 63) <= value < 1 << 63:
        return value
    if type(value) is float and value.is_integer() and abs(value) < _EXACT_FLOAT:
        return int(value)
    raise _mismatch("an integer of 64 bits", value)


def _to_number(value: Any) -> float:
    if type(value) in (int, float):
        try:
            return float(value)
        except OverflowError:
            pass
    raise _mismatch("a number", value)


def _to_boolean(value: Any) -> bool:
    if type(value) is bool:
        return value
    raise _mismatch("a boolean", value)


def _to_string(value: Any) -> str:
    if type(value) is str:
        return value
    raise _mismatch("a string", value)


def _to_time(value: Any) -> datetime:
    try:
        time = datetime.fromisoformat(value)
    except (ValueError, TypeError):
        raise _mismatch("a time such as 2026-01-31T12:00:00Z", value) from None
    if time.tzinfo is None:
        raise _mismatch("a time with a time zone", value)
    return time


def _to_date(value: Any) -> date:
    try:
        return date.fromisoformat(value)
    except (ValueError, TypeError):
        raise _mismatch("a date such as 2026-01-31", value) from None


def _mismatch(expected: str, value: Any) -> DecodeError:
    text = to_json_text(value)
    return DecodeError(f"expected {expected}, not {text if len(text) <= 40 else text[:40] + '...'}")


JSON_TEXT = _Typed(pa.string(), to_json_text)
_STRING = _Typed(pa.string(), _to_string, is_plain=True)
_STRINGS = {"date-time": _Typed(TIMESTAMPTZ, _to_time), "date": _Typed(pa.date32(), _to_date)}
_SCALARS = {
    "integer": _Typed(pa.int64(), _to_integer, is_plain=True),
    "number": _Typed(pa.float64(), _to_number, is_plain=True),
    "boolean": _Typed(pa.bool_(), _to_boolean, is_plain=True),
}
