"""JSON documents as values of Arrow types, and inferred schemas."""

import json
from datetime import UTC, date, datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kbroker.archive.decoding.column_types import TIMESTAMPTZ
from kbroker.archive.decoding.errors import DecodeError
from kbroker.archive.decoding.inference import infer_text, merge_texts
from kbroker.archive.decoding.json_schema import compile_json
from kbroker.archive.decoding.settings import SchemaText


def _decode(schema: Any, document: str) -> tuple[pa.DataType, Any]:
    kind, decode, _ = compile_json(SchemaText((json.dumps(schema),)))
    return kind, pa.array([decode(document.encode())], kind)[0].as_py()


STRUCT = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}}


@pytest.mark.parametrize(
    ("schema", "document", "kind", "value"),
    [
        ({"type": "integer"}, "9223372036854775807", pa.int64(), 2**63 - 1),
        ({"type": "integer"}, "2.0", pa.int64(), 2),
        ({"type": "number"}, "0.1", pa.float64(), 0.1),
        ({"type": ["integer", "number", "null"]}, "1", pa.float64(), 1.0),
        ({"type": "boolean"}, "true", pa.bool_(), True),
        ({"type": ["null", "string"]}, "null", pa.string(), None),
        ({"enum": ["A"], "type": "string"}, '"A"', pa.string(), "A"),
        ({"type": "string", "format": "date"}, '"2026-01-31"', pa.date32(), date(2026, 1, 31)),
        (
            {"type": "string", "format": "date-time"},
            '"2026-01-31T12:00:00.5+01:00"',
            TIMESTAMPTZ,
            datetime(2026, 1, 31, 11, 0, 0, 500000, tzinfo=UTC),
        ),
        ({"type": "array", "items": {"type": "integer"}}, "[1, null]", pa.list_(pa.int64()), [1, None]),
        (
            {"type": "object", "additionalProperties": {"type": "number"}},
            '{"x": 1}',
            pa.map_(pa.string(), pa.float64()),
            [("x", 1.0)],
        ),
        (STRUCT, '{"b": "x"}', pa.struct([("a", pa.int64()), ("b", pa.string())]), {"a": None, "b": "x"}),
        ({"oneOf": [{"type": "null"}, {"type": "integer"}]}, "1", pa.int64(), 1),
        ({"anyOf": [{"type": "string"}, {"type": "integer"}]}, '"x"', pa.string(), '"x"'),
        ({}, '{"x": [1]}', pa.string(), '{"x":[1]}'),
        ({"type": "object", "properties": {"a.b": {}}}, '{"a.b": 1}', pa.string(), '{"a.b":1}'),
    ],
)
def test_types(schema: Any, document: str, kind: pa.DataType, value: Any) -> None:
    """Each type has a column type; what the schema leaves open is a string of JSON."""
    assert _decode(schema, document) == (kind, value)


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        ('{"a": "1"}', 'a: expected an integer of 64 bits, not "1"'),
        ('{"a": 9223372036854775808}', "a: expected an integer of 64 bits, not 9223372036854775808"),
        ('{"a": true}', "a: expected an integer of 64 bits, not true"),
        ('{"a": 1.5}', "a: expected an integer of 64 bits, not 1.5"),
        ('{"c": 1}', "c: the schema does not have this field"),
        ("[]", "expected an object, not []"),
        ('{"a": 1, "a": 2}', "it is not JSON (an object has two fields of one name)"),
        ('{"a": NaN}', "it is not JSON (NaN is not a number of JSON)"),
        ("[" * 100_000, "it is not JSON (maximum recursion depth exceeded"),
        ("", "it is not JSON (Expecting value"),
    ],
)
def test_documents_that_do_not_fit(document: str, reason: str) -> None:
    """The reason names the field."""
    _, decode, _ = compile_json(SchemaText((json.dumps(STRUCT),)))
    with pytest.raises(DecodeError) as error:
        decode(document.encode())
    assert str(error.value).startswith(reason)


def test_references() -> None:
    """Within the document; a schema within itself is a string of JSON."""
    schema = {
        "$ref": "#/$defs/node",
        "$defs": {
            "node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}, "v": {"type": "integer"}}}
        },
    }
    assert _decode(schema, '{"v": 1, "next": {"v": 2}}')[1] == {"v": 1, "next": '{"v":2}'}
    for text in ('{"$ref": "other.json"}', '{"$ref": "#/absent"}', "{", "[]"):
        with pytest.raises(DecodeError, match="the JSON schema is invalid"):
            compile_json(SchemaText((text,)))


def test_inferred_schemas() -> None:
    """Fields of all documents; mixed types stay JSON; the order of tasks does not matter."""
    first = infer_text([{"a": 1, "b": [1], "c": "x", "d": {"e": True}}, None])
    second = infer_text([{"a": 0.5, "b": [], "c": 7, "f": 2**64, "g": None, "d": {"x": 1}}])
    assert first is not None
    assert second is not None
    merged = merge_texts([first, second])
    assert merged == merge_texts([second, first])
    kind, value = _decode(json.loads(merged), '{"a": 1, "b": [2], "c": [3], "d": {"x": 5}, "f": 18446744073709551616}')
    assert value == {"a": 1.0, "b": [2], "c": "[3]", "d": {"e": None, "x": 5}, "f": "18446744073709551616"}
    assert kind.field("a").type == pa.float64()
    assert infer_text([None]) is None


_DOCUMENTS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=200, deadline=None)
@given(st.lists(_DOCUMENTS, min_size=1, max_size=4))
def test_documents_fit_the_schema_that_is_inferred_from_them(documents: list[Any]) -> None:
    """Whatever they are; none becomes null."""
    text = infer_text(documents)
    if text is not None:
        kind, decode, _ = compile_json(SchemaText((text,)))
        column = pa.array([decode(json.dumps(document).encode()) for document in documents], kind)
        assert column.is_null().to_pylist() == [document is None for document in documents]
