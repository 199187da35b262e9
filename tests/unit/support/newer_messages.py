"""Messages of Kafka 4.4 that kio does not have yet, as dataclasses of the form of kio's.

kafka_4_4_messages.json has Kafka's definitions, one message per line. A message that kio has is removed from it.
"""

import json
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, make_dataclass
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any
from uuid import UUID

import kio.schema.request_header.v1.header
import kio.schema.request_header.v2.header
import kio.schema.response_header.v0.header
import kio.schema.response_header.v1.header
from kio.schema.errors import ErrorCode
from kio.static.constants import EntityType
from kio.static.primitive import i16, i32Timedelta

DEFINITIONS: Mapping[str, Any] = json.loads(Path(__file__).with_name("kafka_4_4_messages.json").read_text())
API_VERSIONS = 18
_PYTHON_TYPES = {
    "bool": bool, "int8": int, "int16": int, "uint16": int, "int32": int, "int64": int, "string": str, "bytes": bytes,
    "uuid": UUID
}  # fmt: skip


@dataclass(frozen=True)
class _Context:
    """What all structs of a message have in common. `structs`: the definitions of those that are named."""

    version: int
    flexible: bool
    key: int
    header: type
    structs: Mapping[str, Any]


def versions(name: str) -> range:
    """Return the versions of a message; empty if it is not in the file."""
    return _range(DEFINITIONS[name]["validVersions"]) if name in DEFINITIONS else range(0)


@cache
def message_class(name: str, version: int) -> Any:
    """Return the class of a message, such as ApiVersionsRequest, in a version; None if it is not in the file."""
    if version not in versions(name):
        return None
    definition = DEFINITIONS[name]
    key, flexible = definition["apiKey"], version in _range(definition["flexibleVersions"])
    if name.endswith("Request"):
        kind, headers = EntityType.request, kio.schema.request_header
        header: type = (headers.v2 if flexible else headers.v1).header.RequestHeader
    else:
        kind, headers = EntityType.response, kio.schema.response_header
        # A client can decode the response to a version that the broker does not know.
        header = (headers.v1 if flexible and key != API_VERSIONS else headers.v0).header.ResponseHeader
    structs = {struct["name"]: struct for struct in definition.get("commonStructs", ())}
    return _struct(name, definition["fields"], kind, _Context(version, flexible, key, header, structs))


def _struct(name: str, rows: list[Any], kind: EntityType, context: _Context) -> Any:
    class_vars = {
        "__type__": kind,
        "__version__": i16(context.version),
        "__flexible__": context.flexible,
        "__api_key__": i16(context.key),
        "__header_schema__": context.header,
    }
    fields = [_field(row, context) for row in rows if context.version in _range(row["versions"])]
    return make_dataclass(name, fields, frozen=True, slots=True, kw_only=True, namespace=class_vars)


def _field(row: Mapping[str, Any], context: _Context) -> tuple[str, Any, Any]:
    name = "".join("_" + char.lower() if char.isupper() else char for char in row["name"]).lstrip("_")
    element = row["type"].removeprefix("[]")
    metadata: dict[str, Any] = {}
    if context.version in _range(row.get("taggedVersions", "none")):
        metadata["tag"] = row["tag"]
    python_type: Any = _PYTHON_TYPES.get(element)
    if python_type is None:
        fields = row.get("fields") or context.structs[element]["fields"]
        python_type = _struct(element, fields, EntityType.nested, context)
    else:
        metadata["kafka_type"] = element
    is_nullable = context.version in _range(row.get("nullableVersions", "none"))
    if name == "error_code":
        python_type, metadata["kafka_type"] = ErrorCode, "error_code"
    elif element == "int32" and name.endswith("_ms"):
        name, python_type, metadata["kafka_type"] = name.removesuffix("_ms"), i32Timedelta, "timedelta_i32"
    elif element == "uuid":
        python_type = UUID | None
    if element != row["type"]:
        python_type = tuple[python_type, ...]
    if is_nullable and element != "uuid":
        python_type = python_type | None
    default = _default(row) if "default" in row or "tag" in metadata else MISSING
    if metadata.get("kafka_type") == "timedelta_i32" and default is not MISSING:
        default = timedelta(milliseconds=default)
    return name, python_type, field(metadata=metadata, default=default)


def _default(row: Mapping[str, Any]) -> Any:
    text = row.get("default")
    if text == "null":
        return None
    if row["type"].startswith("[]"):
        return ()
    if row["type"] == "bool":
        return text == "true"
    if row["type"] == "string":
        return text or ""
    return int(text or 0)


def _range(text: str) -> range:
    """Return the versions of "3", "0-5", "3+" or "none"."""
    if text == "none":
        return range(0)
    if text.endswith("+"):
        return range(int(text[:-1]), 1 << 15)
    first, _, last = text.partition("-")
    return range(int(first), int(last or first) + 1)
