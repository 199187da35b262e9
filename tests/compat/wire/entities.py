"""Requests and answers as plain values, through kio: Kafka's schemas as dataclasses, one for each version.

A request is given by all the fields that any version of its API has; those that a version does not have are left
out. Names are kio's: as Kafka's, in snake case, times (ms) without their unit.
"""

from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from datetime import datetime, timedelta
from functools import cache
from importlib import import_module
from io import BytesIO
from pathlib import Path
from types import MappingProxyType
from typing import Any, get_args, get_origin
from uuid import UUID

import kio.schema
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer

# What a field without a default gets when the request does not name it; no type of its own: a number.
EMPTY = {"string": "", "bytes": b"", "records": b"", "bool": False, "uuid": UUID(int=0)}
MS = timedelta(milliseconds=1)


def folder(api: str) -> str:
    return "".join("_" + char.lower() if char.isupper() else char for char in api).lstrip("_")


@cache
def known_versions(api: str) -> list[int]:
    """The versions in which kio has an API."""
    found = Path(next(iter(kio.schema.__path__)), folder(api))
    return sorted(int(path.name[1:]) for path in found.glob("v*"))


@cache
def entity(api: str, kind: str, version: int) -> Any:
    """kio's class of "request" or "response"."""
    module = import_module(f"kio.schema.{folder(api)}.v{version}.{kind}")
    if (api, kind) == ("DescribeTransactions", "response"):
        _as_number(module.TransactionState, "transaction_start_time")
    return getattr(module, api + kind.capitalize())


def _as_number(cls: Any, name: str) -> None:
    """Has kio read a time as a number: it refuses -1, which is no time."""
    for found in fields(cls):
        if found.name == name:
            found.type, found.metadata = int, MappingProxyType({"kafka_type": "int64"})


def api_key(api: str) -> int:
    return int(entity(api, "request", known_versions(api)[-1]).__api_key__)


def request(api: str, version: int, values: Mapping[str, Any], strict: bool = True) -> Any:
    """A request in a version, from the fields of all versions. `strict`: one of them must have each field."""
    unknown = _names(values) - _all_names(api)
    assert not (strict and unknown), f"no version of {api} has {sorted(unknown)}"
    return _build(entity(api, "request", version), values)


def encode_frame(message: Any, correlation_id: int, client_id: str | None) -> bytes:
    """A request with its header and its size in front."""
    header = message.__header_schema__
    made = header(
        request_api_key=message.__api_key__,
        request_api_version=message.__version__,
        correlation_id=correlation_id,
        **({"client_id": client_id} if "client_id" in header.__dataclass_fields__ else {}),
    )
    out = BytesIO()
    entity_writer(header)(out, made)
    entity_writer(type(message))(out, message)
    return len(out.getvalue()).to_bytes(4, "big") + out.getvalue()


def decode_frame(cls: Any, frame: bytes) -> tuple[int, Any]:
    """(correlation id, answer) of a frame without its size; every byte of it must have been needed."""
    header, pos = entity_reader(cls.__header_schema__)(frame, 0)
    answer, size = entity_reader(cls)(frame, pos)
    assert pos + size == len(frame), f"{len(frame) - pos - size} bytes too many after a {cls.__name__}"
    return header.correlation_id, answer


def plain(value: Any) -> Any:
    """An answer as dicts, lists, strings and numbers: error codes by name, times in ms, ids in hex digits."""
    if is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, tuple):
        return [plain(item) for item in value]
    if isinstance(value, ErrorCode):
        return value.name.upper()
    if isinstance(value, timedelta):
        return value // MS
    if isinstance(value, datetime):
        return round(value.timestamp() * 1000)
    if isinstance(value, UUID):
        return str(value)
    return value


def _build(cls: Any, values: Mapping[str, Any]) -> Any:
    return cls(**{field.name: _field(field, values) for field in fields(cls)})


def _field(field: Field[Any], values: Mapping[str, Any]) -> Any:
    if field.name in values:
        return _value(field, field.type, values[field.name])
    if field.default is not MISSING:
        return field.default
    kind = field.metadata.get("kafka_type", "")
    if type(None) in get_args(field.type) and kind != "uuid":
        return None
    if get_origin(field.type) is tuple:
        return ()
    return _value(field, field.type, EMPTY.get(kind, 0))


def _value(field: Field[Any], wanted: Any, value: Any) -> Any:
    if value is None:
        return None
    if isinstance(value, list):
        return tuple(_value(field, wanted, item) for item in value)
    if isinstance(value, Mapping):
        return _build(_dataclass_in(wanted), value)
    if field.metadata.get("kafka_type", "").startswith("timedelta"):
        return value * MS
    if isinstance(value, UUID):
        return value if value.int else None
    return value


def _dataclass_in(wanted: Any) -> Any:
    """The dataclass in `X`, `X | None`, `tuple[X, ...]` and `tuple[X, ...] | None`."""
    if is_dataclass(wanted):
        return wanted
    return next((found for item in get_args(wanted) if (found := _dataclass_in(item)) is not None), None)


def _names(values: Any) -> set[str]:
    if isinstance(values, Mapping):
        return set(values).union(*map(_names, values.values()))
    return set().union(*map(_names, values)) if isinstance(values, list) else set()


@cache
def _all_names(api: str) -> set[str]:
    return set().union(*(_field_names(entity(api, "request", version)) for version in known_versions(api)))


def _field_names(cls: Any) -> set[str]:
    nested = [found for field in fields(cls) if (found := _dataclass_in(field.type)) is not None]
    return {field.name for field in fields(cls)}.union(*map(_field_names, nested))
