"""Avro records as values of Arrow types."""

import io
import json
from datetime import UTC, date, datetime, time
from decimal import Context, Decimal
from typing import Any
from uuid import UUID

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kbroker.archive.decoding.avro import compile_avro
from kbroker.archive.decoding.column_types import TIME, TIMESTAMP, TIMESTAMPTZ
from kbroker.archive.decoding.errors import DecodeError
from kbroker.archive.decoding.settings import SchemaText

NOW = datetime(2026, 1, 31, 12, 0, 0, 123456, tzinfo=UTC)


def _encode(schema: Any, value: Any) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), value)
    return stream.getvalue()


def _round_trip(schema: Any, value: Any) -> tuple[pa.DataType, Any]:
    """Return the type, and the value after encoding, decoding and a column of the type."""
    kind, decode = compile_avro(SchemaText((json.dumps(schema),)))
    return kind, pa.array([decode(_encode(schema, value))], kind)[0].as_py()


def _logical(kind: str, logical: str, **options: Any) -> dict[str, Any]:
    return {"type": kind, "logicalType": logical, **options}


@pytest.mark.parametrize(
    ("schema", "value", "kind"),
    [
        ("boolean", True, pa.bool_()),
        ("int", -(2**31), pa.int32()),
        ("long", 2**63 - 1, pa.int64()),
        ("float", 0.5, pa.float32()),
        ("double", 0.1, pa.float64()),
        ("string", "ä\0", pa.string()),
        ("bytes", b"\xff", pa.binary()),
        ({"type": "fixed", "name": "f", "size": 3}, b"abc", pa.binary(3)),
        ({"type": "enum", "name": "e", "symbols": ["A", "B"]}, "B", pa.string()),
        ({"type": "array", "items": "int"}, [1, 2], pa.list_(pa.int32())),
        ({"type": "map", "values": "long"}, {"a": 1}, pa.map_(pa.string(), pa.int64())),
        (["null", "string"], None, pa.string()),
        (["string", "null"], "x", pa.string()),
        (["null"], None, pa.string()),
        (_logical("int", "date"), date(2026, 1, 31), pa.date32()),
        (_logical("int", "time-millis"), time(1, 2, 3, 4000), TIME),
        (_logical("long", "time-micros"), time(1, 2, 3, 4), TIME),
        (_logical("long", "timestamp-millis"), NOW.replace(microsecond=123000), TIMESTAMPTZ),
        (_logical("long", "timestamp-micros"), NOW, TIMESTAMPTZ),
        (_logical("long", "local-timestamp-micros"), NOW.replace(tzinfo=None), TIMESTAMP),
        (_logical("bytes", "decimal", precision=10, scale=2), Decimal("-1.10"), pa.decimal128(10, 2)),
        (_logical("fixed", "decimal", precision=38, scale=0, size=16, name="d"), Decimal(10**37), pa.decimal128(38, 0)),
        (_logical("int", "unknown"), 7, pa.int32()),
    ],
)
def test_types(schema: Any, value: Any, kind: pa.DataType) -> None:
    """Each type has a column type that holds its values exactly."""
    found, result = _round_trip(schema, value)
    assert found == kind
    assert (dict(result) if isinstance(value, dict) else result) == value


def test_types_that_become_strings() -> None:
    """UUIDs, decimals of more than 38 digits, unions of several types, and records within themselves."""
    identifier = UUID("12345678-1234-5678-1234-567812345678")
    assert _round_trip(_logical("string", "uuid"), identifier) == (pa.string(), str(identifier))
    large = Decimal("12345678901234567890123456789012345678901.5")
    assert _round_trip(_logical("bytes", "decimal", precision=50, scale=1), large) == (pa.string(), str(large))
    union = ["null", "string", "long", "bytes"]
    assert [_round_trip(union, value)[1] for value in ("5", 5, b"a", None)] == ['"5"', "5", '"YQ=="', None]
    tree = {"type": "record", "name": "tree", "fields": [{"name": "next", "type": ["null", "tree"]}]}
    assert _round_trip(tree, {"next": {"next": None}})[1] == {"next": '{"next":null}'}
    assert _round_trip({"type": "record", "name": "nothing", "fields": []}, {})[1] == "{}"


def test_nested_conversions() -> None:
    """Strings of JSON within lists, maps and optional records."""
    inner = {"type": "record", "name": "r", "fields": [{"name": "id", "type": _logical("string", "uuid")}]}
    fields = [
        {"name": "list", "type": {"type": "array", "items": ["null", inner]}},
        {"name": "map", "type": {"type": "map", "values": ["int", "string"]}},
        {"name": "optional", "type": ["null", "r"]},
    ]
    identifier = str(UUID(int=1))
    value = {"list": [{"id": identifier}, None], "map": {"a": 1}, "optional": None}
    _, result = _round_trip({"type": "record", "name": "o", "fields": fields}, value)
    assert result == {"list": [{"id": identifier}, None], "map": [("a", "1")], "optional": None}


def test_named_types_of_other_schemas() -> None:
    """A schema may refer to schemas before it."""
    inner = {"type": "record", "name": "a.Inner", "fields": [{"name": "x", "type": "int"}]}
    outer = {"type": "record", "name": "Outer", "fields": [{"name": "inner", "type": "a.Inner"}]}
    kind, _ = compile_avro(SchemaText((json.dumps(inner), json.dumps(outer))))
    assert kind == pa.struct([("inner", pa.struct([("x", pa.int32())]))])
    for text in ("{", '"unknown"', json.dumps(outer), '{"type": "fixed", "name": "f"}'):
        with pytest.raises(DecodeError, match="the Avro schema is invalid"):
            compile_avro(SchemaText((text,)))


def test_bytes_of_another_schema() -> None:
    """Bytes after the record show that it has another schema."""
    _, decode = compile_avro(SchemaText(('"int"',)))
    with pytest.raises(DecodeError, match="1 bytes follow the record"):
        decode(_encode("int", 1) + b"x")
    with pytest.raises(EOFError):
        decode(b"")


_RECORD = {
    "type": "record",
    "name": "random",
    "fields": [
        {"name": "a", "type": ["null", "long"]},
        {"name": "b", "type": {"type": "array", "items": ["null", "string"]}},
        {"name": "c", "type": {"type": "map", "values": {"type": "array", "items": "double"}}},
        {"name": "d", "type": _logical("bytes", "decimal", precision=38, scale=10)},
        {"name": "e", "type": {"type": "record", "name": "e", "fields": [{"name": "f", "type": ["bytes", "null"]}]}},
    ],
}
_DECIMALS = st.integers(-(10**38) + 1, 10**38 - 1).map(lambda number: Decimal(number).scaleb(-10, Context(prec=38)))


@settings(max_examples=100, deadline=None)
@given(
    st.fixed_dictionaries(
        {
            "a": st.none() | st.integers(-(2**63), 2**63 - 1),
            "b": st.lists(st.none() | st.text()),
            "c": st.dictionaries(st.text(), st.lists(st.floats(allow_nan=False))),
            "d": _DECIMALS,
            "e": st.fixed_dictionaries({"f": st.none() | st.binary()}),
        }
    )
)
def test_random_records(value: dict[str, Any]) -> None:
    """The column has exactly what was encoded."""
    _, result = _round_trip(_RECORD, value)
    assert result == {**value, "c": list(value["c"].items())}
