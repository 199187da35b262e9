"""The types of decoded columns as Arrow types, and how they change (pure).

All fields can be null. A column only becomes wider: fields are added, int becomes long, float becomes double, and a
decimal gets more digits. This is what Iceberg can do without rewriting files.
"""

import pyarrow as pa
import pyarrow.types as kinds
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema

from kbroker.archive.decoding.errors import DecodeError

# The columns, by what they are decoded from. They are not spread over the table: a field of a record may be called
# `offset` or `key`, too.
COLUMNS = {"value": "decoded_value", "key": "decoded_key"}
TIMESTAMPTZ, TIMESTAMP, TIME = pa.timestamp("us", "UTC"), pa.timestamp("us"), pa.time64("us")
MAX_DECIMAL_DIGITS = 38
_WIDER = {pa.int32(): pa.int64(), pa.float32(): pa.float64()}


def table_types(schema: Schema) -> dict[str, pa.DataType]:
    """Return the types of the decoded columns that a table has, by what they are decoded from."""
    columns = schema_to_pyarrow(schema, include_field_ids=False)
    return {
        source: _without_required(columns.field(name).type) for source, name in COLUMNS.items() if name in columns.names
    }


def _without_required(kind: pa.DataType) -> pa.DataType:
    if kinds.is_struct(kind):
        return pa.struct([(field.name, _without_required(field.type)) for field in kind])
    if kinds.is_map(kind):
        return pa.map_(_without_required(kind.key_type), _without_required(kind.item_type))
    if kinds.is_list(kind) or kinds.is_large_list(kind):
        return pa.list_(_without_required(kind.value_type))
    return {pa.large_string(): pa.string(), pa.large_binary(): pa.binary()}.get(kind, kind)


def widen(current: pa.DataType, new: pa.DataType) -> pa.DataType:
    """Return the type that holds the values of both. Raises DecodeError if Iceberg has no such type."""
    if current == new:
        return current
    if kinds.is_struct(current) and kinds.is_struct(new):
        return _widen_struct(current, new)
    if kinds.is_list(current) and kinds.is_list(new):
        return pa.list_(_widen_field("[]", current.value_type, new.value_type))
    if kinds.is_map(current) and kinds.is_map(new) and current.key_type == new.key_type:
        return pa.map_(current.key_type, _widen_field("[]", current.item_type, new.item_type))
    if kinds.is_decimal(current) and kinds.is_decimal(new) and current.scale == new.scale:
        return max(current, new, key=lambda kind: kind.precision)
    if _WIDER.get(current) == new:
        return new
    if _WIDER.get(new) == current:
        return current
    raise DecodeError(f"the column is {type_name(current)}, and the schema has {type_name(new)}")


def _widen_struct(current: pa.StructType, new: pa.StructType) -> pa.DataType:
    fields = {field.name: field.type for field in current}
    for field in new:
        before = fields.get(field.name)
        fields[field.name] = field.type if before is None else _widen_field(field.name, before, field.type)
    return pa.struct(list(fields.items()))


def _widen_field(name: str, current: pa.DataType, new: pa.DataType) -> pa.DataType:
    try:
        return widen(current, new)
    except DecodeError as error:
        raise error.within(name) from None


def type_name(kind: pa.DataType) -> str:
    """Return Iceberg's name of a type."""
    if kinds.is_nested(kind):
        return "map" if kinds.is_map(kind) else "list" if kinds.is_list(kind) else "struct"
    if kinds.is_decimal(kind):
        return f"decimal({kind.precision}, {kind.scale})"
    if kinds.is_fixed_size_binary(kind):
        return f"fixed({kind.byte_width})"
    return _NAMES[kind]


_NAMES = {
    pa.bool_(): "boolean",
    pa.int32(): "int",
    pa.int64(): "long",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.binary(): "binary",
    pa.date32(): "date",
    TIME: "time",
    TIMESTAMP: "timestamp",
    TIMESTAMPTZ: "timestamptz",
}
