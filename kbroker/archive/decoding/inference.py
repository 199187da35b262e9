"""Infer a JSON schema from documents (pure).

Integers that do not fit into 64 bits, mixed types and objects without fields stay JSON. Times stay strings, because a
later string need not be one.
"""

import json
from collections.abc import Iterable, Mapping
from functools import reduce
from typing import Any

from kbroker.archive.decoding.json_schema import is_column_name

# What is merged with other types to anything: the schema {}.
_ANYTHING: Mapping[str, Any] = {}


def infer_text(documents: Iterable[Any]) -> str | None:
    """Return the text of the JSON schema of all documents that are not null; None if there are none."""
    schema = _infer(documents)
    return None if schema is None else json.dumps(schema, separators=(",", ":"))


def _infer(documents: Iterable[Any]) -> Mapping[str, Any] | None:
    schemas = [_schema_of(document) for document in documents if document is not None]
    return reduce(_merge, schemas) if schemas else None


def merge_texts(texts: Iterable[str]) -> str:
    """Return the JSON text of the schema that holds the documents of all these schemas, in any order."""
    return json.dumps(reduce(_merge, map(json.loads, sorted(texts))), separators=(",", ":"))


def extend_text(known: str, other: str) -> str:
    """Return the text of the known schema with the fields that only the other one has."""
    return json.dumps(_extend(json.loads(known), json.loads(other)), separators=(",", ":"))


def _extend(known: Mapping[str, Any], other: Mapping[str, Any]) -> Mapping[str, Any]:
    # An object without fields is a string of JSON, and stays one.
    if known.get("properties") and other.get("properties"):
        fields = {name: _extend(item, other["properties"].get(name, {})) for name, item in known["properties"].items()}
        return {**known, "properties": {**other["properties"], **fields}}
    if known.get("items") and other.get("items"):
        return {**known, "items": _extend(known["items"], other["items"])}
    return known


def _schema_of(value: Any) -> Mapping[str, Any]:
    if isinstance(value, bool):
        return {"type": "boolean"}
    if isinstance(value, int):
        return {"type": "integer"} if -(1 << 63) <= value < 1 << 63 else _ANYTHING
    if isinstance(value, float):
        return {"type": "number"}
    if isinstance(value, str):
        return {"type": "string"}
    if isinstance(value, list):
        items = _infer(value)
        return {"type": "array"} if items is None else {"type": "array", "items": items}
    if not all(map(is_column_name, value)):
        return _ANYTHING
    fields = {name: _schema_of(item) for name, item in value.items() if item is not None}
    return {"type": "object", "properties": fields}


def _merge(first: Mapping[str, Any], second: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the inferred schema that holds the documents of both."""
    if first == second:
        return first
    kinds = {first.get("type"), second.get("type")}
    if kinds == {"object"}:
        fields = dict(first["properties"])
        for name, schema in second["properties"].items():
            fields[name] = _merge(fields[name], schema) if name in fields else schema
        return {"type": "object", "properties": fields}
    if kinds == {"array"}:
        items = [schema["items"] for schema in (first, second) if "items" in schema]
        return {"type": "array", "items": reduce(_merge, items)}
    return {"type": "number"} if kinds == {"integer", "number"} else _ANYTHING
