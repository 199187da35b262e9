"""Requests and responses through kio, which has Kafka's messages as one dataclass per version.

A request is made from the fields of all versions of its API: those that its version does not have are left out. Field
names are kio's: Kafka's in snake case, times (milliseconds) without their unit.
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

from tests.unit.support import newer_messages

# The value of a required field that a request does not set, by wire type; 0 for all others.
EMPTY = {"string": "", "bytes": b"", "records": b"", "bool": False, "uuid": UUID(int=0)}
MS = timedelta(milliseconds=1)
# Responses that may have the time -1: the class and its fields.
TIMES_BELOW_0 = {
    "DescribeTransactions": ("TransactionState", "transaction_start_time"),
    "CreateDelegationToken": ("CreateDelegationTokenResponse", "issue_timestamp", "expiry_timestamp", "max_timestamp"),
    "RenewDelegationToken": ("RenewDelegationTokenResponse", "expiry_timestamp"),
    "ExpireDelegationToken": ("ExpireDelegationTokenResponse", "expiry_timestamp"),
}


def folder(api: str) -> str:
    return "".join("_" + char.lower() if char.isupper() else char for char in api).lstrip("_")


@cache
def known_versions(api: str) -> list[int]:
    """Return the versions of an API that kio has."""
    path = Path(next(iter(kio.schema.__path__)), folder(api))
    return sorted({*(int(path.name[1:]) for path in path.glob("v*")), *newer_messages.versions(f"{api}Request")})


@cache
def entity(api: str, kind: str, version: int) -> Any:
    """Return kio's class of a "request" or "response", or one like it if kio does not have the version."""
    try:
        module = import_module(f"kio.schema.{folder(api)}.v{version}.{kind}")
    except ModuleNotFoundError:
        return newer_messages.message_class(api + kind.capitalize(), version)
    if kind == "response" and api in TIMES_BELOW_0:
        cls, *names = TIMES_BELOW_0[api]
        for name in names:
            _read_as_number(getattr(module, cls), name)
    return getattr(module, api + kind.capitalize())


def _read_as_number(cls: Any, name: str) -> None:
    """Make kio read a time as a number: as a time it rejects -1."""
    for field in fields(cls):
        if field.name == name:
            field.type, field.metadata = int, MappingProxyType({"kafka_type": "int64"})


def api_key(api: str) -> int:
    return int(entity(api, "request", known_versions(api)[-1]).__api_key__)


def request(api: str, version: int, values: Mapping[str, Any], strict: bool = True) -> Any:
    """Return a request in a version, from the fields of all versions.

    strict: raise AssertionError for a field that no version has.
    """
    unknown = _names(values) - _all_names(api)
    assert not (strict and unknown), f"no version of {api} has {sorted(unknown)}"
    return _build(entity(api, "request", version), values)


def encode(message: Any) -> bytes:
    out = BytesIO()
    entity_writer(type(message))(out, message)
    return out.getvalue()


def decode(cls: Any, frame: bytes, pos: int) -> Any:
    """Decode the body at a position of a frame; raises AssertionError if bytes remain after it."""
    response, size = entity_reader(cls)(frame, pos)
    assert pos + size == len(frame), f"{len(frame) - pos - size} bytes too many after a {cls.__name__}"
    return response


def encode_request_frame(message: Any, correlation_id: int, client_id: str | None) -> bytes:
    """Encode a frame, including its size."""
    header = message.__header_schema__
    values = header(
        request_api_key=message.__api_key__,
        request_api_version=message.__version__,
        correlation_id=correlation_id,
        **({"client_id": client_id} if "client_id" in header.__dataclass_fields__ else {}),
    )
    frame = encode(values) + encode(message)
    return len(frame).to_bytes(4, "big") + frame


def decode_response_frame(cls: Any, frame: bytes) -> Any:
    """Decode the response in a frame without its size."""
    _, pos = entity_reader(cls.__header_schema__)(frame, 0)
    return decode(cls, frame, pos)


def plain(value: Any) -> Any:
    """Convert a response to dicts, lists, strings and numbers: error codes by name, times in ms, uuids as text."""
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
    return cls(**{field.name: _field_value(field, values) for field in fields(cls)})


def _field_value(field: Field[Any], values: Mapping[str, Any]) -> Any:
    if field.name in values:
        return _convert(field, field.type, values[field.name])
    if field.default is not MISSING:
        return field.default
    kind = field.metadata.get("kafka_type", "")
    if type(None) in get_args(field.type) and kind != "uuid":
        return None
    if get_origin(field.type) is tuple:
        return ()
    return _convert(field, field.type, EMPTY.get(kind, 0))


def _convert(field: Field[Any], annotation: Any, value: Any) -> Any:
    if value is None:
        return None
    if isinstance(value, list):
        return tuple(_convert(field, annotation, item) for item in value)
    if isinstance(value, Mapping):
        return _build(_dataclass_in(annotation), value)
    if field.metadata.get("kafka_type", "").startswith("timedelta"):
        return value * MS
    if isinstance(value, UUID):
        return value if value.int else None
    return value


def _dataclass_in(annotation: Any) -> Any:
    """Return the dataclass X in `X`, `X | None`, `tuple[X, ...]` and `tuple[X, ...] | None`."""
    if is_dataclass(annotation):
        return annotation
    return next((dataclass for item in get_args(annotation) if (dataclass := _dataclass_in(item)) is not None), None)


def _names(values: Any) -> set[str]:
    if isinstance(values, Mapping):
        return set(values).union(*map(_names, values.values()))
    return set().union(*map(_names, values)) if isinstance(values, list) else set()


@cache
def _all_names(api: str) -> set[str]:
    return set().union(*(_field_names(entity(api, "request", version)) for version in known_versions(api)))


def _field_names(cls: Any) -> set[str]:
    nested = [dataclass for field in fields(cls) if (dataclass := _dataclass_in(field.type)) is not None]
    return {field.name for field in fields(cls)}.union(*map(_field_names, nested))
