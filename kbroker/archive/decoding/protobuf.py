"""Protobuf: messages as Arrow types, and messages as values of these types.

A field without presence has its default value if a message lacks it; other fields are null then. Enums are strings.
64-bit unsigned integers are decimals. Timestamps are in microseconds, wrappers are their values; Struct, Value,
ListValue and messages within themselves are strings of JSON. A message with unknown fields is not decoded.
"""

import base64
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
from google.protobuf import json_format
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError as ProtobufError
from google.protobuf.message_factory import GetMessageClass
from google.protobuf.unknown_fields import UnknownFieldSet

from kbroker.archive.decoding.column_types import TIMESTAMPTZ
from kbroker.archive.decoding.errors import DecodeError
from kbroker.archive.decoding.json_text import to_json_text
from kbroker.archive.decoding.settings import SchemaText

Convert = Callable[[Any], Any]
_Typed = tuple[pa.DataType, Convert | None]  # None: the value itself

_UNSIGNED_64 = pa.decimal128(20, 0)
_SCALARS: dict[int, _Typed] = {
    FieldDescriptor.CPPTYPE_INT32: (pa.int32(), None),
    FieldDescriptor.CPPTYPE_INT64: (pa.int64(), None),
    FieldDescriptor.CPPTYPE_UINT32: (pa.int64(), None),
    FieldDescriptor.CPPTYPE_UINT64: (_UNSIGNED_64, Decimal),
    FieldDescriptor.CPPTYPE_DOUBLE: (pa.float64(), None),
    FieldDescriptor.CPPTYPE_FLOAT: (pa.float32(), None),
    FieldDescriptor.CPPTYPE_BOOL: (pa.bool_(), None),
}
_GOOGLE = "google.protobuf."
_WRAPPERS = frozenset(
    f"{_GOOGLE}{name}Value"
    for name in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
)
_JSON = frozenset(f"{_GOOGLE}{name}" for name in ("Struct", "Value", "ListValue", "Any"))
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def compile_protobuf(schema: SchemaText) -> tuple[pa.DataType, Callable[[bytes], Any]]:
    """Return the type of a message and the function that decodes one. Raises DecodeError."""
    descriptor = _find_message(schema)
    message_class: Any = GetMessageClass(descriptor)
    kind, convert = _compile_message(descriptor, ())

    def decode(data: bytes) -> Any:
        try:
            message = message_class.FromString(data)
        except ProtobufError as error:
            raise DecodeError(f"it is not a message {descriptor.full_name} ({error})") from None
        return message if convert is None else convert(message)

    return kind, decode


def read_message_path(data: bytes) -> tuple[tuple[int, ...], bytes]:
    """Return the path of a message within its file, as records have it after the id of their schema, and the rest."""
    count, position = _read_number(data, 0)
    path = []
    for _ in range(count):
        number, position = _read_number(data, position)
        path.append(number)
    return tuple(path) or (0,), data[position:]


def _read_number(data: bytes, position: int) -> tuple[int, int]:
    """Return the signed number (zigzag) at a position, and the position after it."""
    result = 0
    for index, byte in enumerate(data[position : position + 5]):
        result |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            if result & 1:
                break
            return result >> 1, position + index + 1
    raise DecodeError("after the id of the schema there is no path of a message")


def message_name(schema: SchemaText, path: tuple[int, ...]) -> str:
    """Return the full name of the message with this path. Raises DecodeError."""
    try:
        messages: Any = FileDescriptorSet.FromString(base64.b64decode(schema.texts[0])).file[-1]
        names = [messages.package] if messages.package else []
        for depth, index in enumerate(path):
            messages = messages.nested_type[index] if depth else messages.message_type[index]
            names.append(messages.name)
    except (IndexError, ValueError, ProtobufError):
        raise DecodeError(f"the schema does not have a message {'.'.join(map(str, path))}") from None
    return ".".join(names)


def _find_message(schema: SchemaText) -> Any:
    try:
        files = FileDescriptorSet.FromString(base64.b64decode(schema.texts[0], validate=True))
        pool = DescriptorPool()
        for file in _with_google_files(files):
            pool.Add(file)
        if schema.message:
            return pool.FindMessageTypeByName(schema.message)
        messages = pool.FindFileByName(files.file[-1].name).message_types_by_name
        return next(iter(messages.values()))
    except (ValueError, ProtobufError):
        raise DecodeError("the schema is not a FileDescriptorSet of protobuf (protoc --descriptor_set_out)") from None
    except (KeyError, TypeError, IndexError, StopIteration) as error:
        name = schema.message or "a message"
        raise DecodeError(
            f"the protobuf schema does not have {name}, or not all files that it imports: {error}"
        ) from None


def _with_google_files(files: FileDescriptorSet) -> Iterator[Any]:
    """Yield the files, and before them those of Google that they import and that registries do not have."""
    own = {file.name for file in files.file}
    for name in sorted({name for file in files.file for name in file.dependency} - own):
        if name.startswith("google/protobuf/") and (found := _google_file(name)) is not None:
            yield found
    yield from files.file


def _google_file(name: str) -> Any:
    from google.protobuf import (
        any_pb2,
        descriptor_pb2,
        duration_pb2,
        empty_pb2,
        field_mask_pb2,
        struct_pb2,
        timestamp_pb2,
        wrappers_pb2,
    )

    modules: tuple[Any, ...] = (
        any_pb2, descriptor_pb2, duration_pb2, empty_pb2, field_mask_pb2, struct_pb2, timestamp_pb2, wrappers_pb2,
    )  # fmt: skip
    for module in modules:
        if module.DESCRIPTOR.name == name:
            result = descriptor_pb2.FileDescriptorProto()
            module.DESCRIPTOR.CopyToProto(result)
            return result
    return None


def _compile_message(descriptor: Descriptor, outer: tuple[str, ...]) -> _Typed:
    name = descriptor.full_name
    if name == f"{_GOOGLE}Timestamp":
        return TIMESTAMPTZ, lambda message: _EPOCH + timedelta(0, message.seconds, message.nanos // 1000)
    if name in _WRAPPERS:
        kind, convert = _compile_value(descriptor.fields_by_name["value"], outer)
        return kind, (lambda message: message.value) if convert is None else lambda message: convert(message.value)
    if name in outer or name in _JSON or not descriptor.fields:
        return pa.string(), _to_json
    fields = [(field.name, *_compile_field(field, (*outer, name))) for field in descriptor.fields]
    readers = [(name, convert) for name, _, convert in fields]

    def convert_message(message: Any) -> Any:
        if len(UnknownFieldSet(message)):
            numbers = ", ".join(sorted({str(field.field_number) for field in UnknownFieldSet(message)}))
            raise DecodeError(f"the message {name} has fields that the schema does not have: {numbers}")
        return {field: read(message) for field, read in readers}

    return pa.struct([(field, kind) for field, kind, _ in fields]), convert_message


def _to_json(message: Any) -> str:
    return to_json_text(json_format.MessageToDict(message, preserving_proto_field_name=True))


def _compile_field(field: FieldDescriptor, outer: tuple[str, ...]) -> tuple[pa.DataType, Convert]:
    """Return the type of a field, and the function that returns its value of a message."""
    name = field.name
    if _is_map(field):
        entry = field.message_type.fields_by_name
        key_type, convert_key = _compile_value(entry["key"], outer)
        item_type, convert_item = _compile_value(entry["value"], outer)
        of_key, of_item = convert_key or _same, convert_item or _same
        return pa.map_(key_type, item_type), lambda message: {
            of_key(key): of_item(item) for key, item in getattr(message, name).items()
        }
    kind, convert = _compile_value(field, outer)
    of_value = convert or _same
    if _is_repeated(field):
        return pa.list_(kind), lambda message: [of_value(item) for item in getattr(message, name)]
    if field.has_presence:
        return kind, lambda message: of_value(getattr(message, name)) if message.HasField(name) else None
    return kind, lambda message: of_value(getattr(message, name))


def _is_repeated(field: FieldDescriptor) -> bool:
    # Newer versions have no `label`, older ones no `is_repeated`.
    return bool(field.is_repeated if hasattr(field, "is_repeated") else field.label == FieldDescriptor.LABEL_REPEATED)


def _is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def _compile_value(field: FieldDescriptor, outer: tuple[str, ...]) -> _Typed:
    if field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
        return _compile_message(field.message_type, outer)
    if field.cpp_type == FieldDescriptor.CPPTYPE_ENUM:
        return pa.string(), _enum_name(field.enum_type)
    if field.type == FieldDescriptor.TYPE_BYTES:
        return pa.binary(), None
    return _SCALARS.get(field.cpp_type, (pa.string(), None))


def _enum_name(enum: EnumDescriptor) -> Convert:
    """Return the name of a number; a number without a name as text."""
    names = {value.number: value.name for value in reversed(enum.values)}
    return lambda number: names.get(number, str(number))


def _same(value: Any) -> Any:
    return value
