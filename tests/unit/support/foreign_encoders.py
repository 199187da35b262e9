"""Encodes messages with other libraries: kio (Kafka's schemas as dataclasses) and kafka-python."""

from dataclasses import fields
from datetime import UTC, datetime, timedelta
from functools import cache
from importlib import import_module
from io import BytesIO
from typing import Any
from uuid import UUID

from kio.schema.errors import ErrorCode
from kio.serial import entity_writer

from protocol.schema.message import Message, Struct, message_info
from protocol.schema.primitives import ZERO_UUID
from tests.unit.support import newer_messages

# Fields of TxnOffsetCommit before Kafka 4.4.
_FORMER_NAMES = {
    "acceptable_recovery_lag_legacy": "acceptable_recovery_lag",
    "generation_id_or_member_epoch": "generation_id",
}
_EPOCH = datetime.fromtimestamp(0, UTC)


@cache
def kio_class(name: str, kind: str, version: int) -> Any:
    """Return the class of kio for a message in a version, or None."""
    base = name.removesuffix("Request").removesuffix("Response") if kind in ("request", "response") else name
    folder = "".join("_" + char.lower() if char.isupper() else char for char in base).lstrip("_")
    try:
        module = import_module(f"kio.schema.{folder}.v{version}.{kind}")
    except ModuleNotFoundError:
        return newer_messages.message_class(name, version)
    return getattr(module, name)


def kio_encode(message: Message, version: int) -> bytes | None:
    """Encode a message with kio; returns None if kio does not have it, or cannot represent a time."""
    cls = message.__class__
    foreign_class = kio_class(cls.__name__, message_info(cls).kind, version)
    if foreign_class is None:
        return None
    out = BytesIO()
    try:
        foreign = _to_kio(message, foreign_class)
    except OverflowError:
        return None
    entity_writer(foreign_class)(out, foreign)
    return out.getvalue()


def _to_kio(value: Struct, foreign_class: Any) -> Any:
    arguments = {}
    for field in fields(foreign_class):
        # kio drops the unit from the names of times, which it keeps as timedelta. It has "id_" for "id".
        plain = field.name.removesuffix("_")
        names = (plain, f"{plain}_ms", *(name for name, former in _FORMER_NAMES.items() if former == plain))
        rows = value.__class__.__rows__
        name = next(name for name in names if name in rows and rows[name].is_in(foreign_class.__version__))
        arguments[field.name] = _kio_value(getattr(value, name), field)
    return foreign_class(**arguments)


def _kio_value(value: Any, field: Any) -> Any:
    kind = field.metadata.get("kafka_type")
    if value is None:
        return None
    if isinstance(value, list):
        return tuple(_kio_value(item, field) for item in value)
    if isinstance(value, Struct):
        return _to_kio(value, _struct_class(field.type))
    if kind == "error_code":
        return ErrorCode(value)
    if kind in ("timedelta_i32", "timedelta_i64"):
        return timedelta(milliseconds=value)
    if kind == "datetime_i64":
        # kio takes -1 for "no time" only where a field may be absent.
        optional = type(None) in getattr(field.type, "__args__", ())
        return None if value == -1 and optional else _EPOCH + timedelta(milliseconds=value)
    if kind == "uuid":
        return UUID(bytes=value) if value != ZERO_UUID else None
    return value


def _struct_class(annotation: Any) -> Any:
    """Return the dataclass X in `X`, `X | None`, `tuple[X, ...]` and `tuple[X, ...] | None`."""
    if hasattr(annotation, "__dataclass_fields__"):
        return annotation
    return next(struct_class for item in annotation.__args__ if (struct_class := _struct_class_or_none(item)))


def _struct_class_or_none(annotation: Any) -> Any:
    if hasattr(annotation, "__dataclass_fields__"):
        return annotation
    for item in getattr(annotation, "__args__", ()):
        if struct_class := _struct_class_or_none(item):
            return struct_class
    return None


@cache
def kafka_python_class(name: str) -> Any:
    """Return the class of kafka-python for a message, or None."""
    for room in ("admin", "consumer", "metadata", "producer", "sasl"):
        module = import_module(f"kafka.protocol.{room}")
        if isinstance(message_class := getattr(module, name, None), type):
            return message_class
    return None


def kafka_python_encode(message: Message, version: int) -> bytes | None:
    """Encode a message with kafka-python; returns None if it does not have it."""
    foreign_class = kafka_python_class(message.__class__.__name__)
    if foreign_class is None or version > foreign_class._struct.max_version:
        return None
    encoded: bytes = _to_kafka_python(message, foreign_class, version).encode(version=version)
    # kafka-python encodes the version before the data that consumers exchange.
    return encoded[2:] if message_info(message.__class__).kind == "data" else encoded


def _to_kafka_python(value: Struct, foreign_class: Any, version: int) -> Any:
    arguments = {}
    for name, row in value.__class__.__rows__.items():
        item = getattr(value, name)
        if not row.is_in(version) or (row.tag >= 0 and item == row.new_default()):
            continue
        # kafka-python shortens topic_authorized_operations and cluster_authorized_operations.
        short = name
        if name not in foreign_class._struct.fields:
            short = _FORMER_NAMES.get(name, name[name.index("_") + 1 :])
        arguments[short] = _kafka_python_value(item, foreign_class, foreign_class._struct.fields[short], version)
    return foreign_class(version=version, **arguments)


def _kafka_python_value(value: Any, parent: Any, field: Any, version: int) -> Any:
    if isinstance(value, list):
        return [_kafka_python_value(item, parent, field, version) for item in value]
    if isinstance(value, Struct):
        return _to_kafka_python(value, getattr(parent, field.type_str), version)
    if value is not None and field._json["type"] == "bitfield":
        return {bit for bit in range(32) if value >> bit & 1}
    if isinstance(value, bytes) and field._json["type"].endswith("uuid"):
        return UUID(bytes=value)
    return value
