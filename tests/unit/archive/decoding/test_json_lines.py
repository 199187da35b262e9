"""JSON documents that are decoded at once have the same values as those decoded one by one."""

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kbroker.archive.decoding.errors import DecodeError
from kbroker.archive.decoding.json_lines import decode_lines
from kbroker.archive.decoding.json_schema import compile_json
from kbroker.archive.decoding.settings import SchemaText

SCHEMA = {
    "type": "object",
    "properties": {
        "a": {"type": "integer"},
        "b": {"type": "array", "items": {"type": "object", "properties": {"c": {"type": "string"}}}},
        "d": {"type": "number"},
        "e": {"type": "boolean"},
    },
}
KIND, DECODE, IS_PLAIN = compile_json(SchemaText((json.dumps(SCHEMA),)))


def test_plain_types() -> None:
    """Types that Arrow converts in another way are decoded one by one."""
    assert IS_PLAIN
    for schema in ({}, {"type": "string", "format": "date"}, {"type": "object", "additionalProperties": {}}):
        nested = {"type": "array", "items": {"type": "object", "properties": {"x": schema}}}
        assert not compile_json(SchemaText((json.dumps(nested),))).is_plain


def test_nulls_and_line_ends() -> None:
    """Null records, documents that are null, and documents on several lines."""
    documents = pa.array([None, b"null", b'{\n "a":\r\n1}', None, b'{"d": 9007199254740993, "e": null}'], pa.binary())
    values = decode_lines(documents, KIND)
    assert values is not None
    assert [value and value["a"] for value in values.to_pylist()] == [None, None, 1, None, None]
    assert decode_lines(documents.slice(3, 2), KIND).to_pylist()[1]["d"] == 9007199254740992.0  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "document",
    [
        b"",
        b" ",
        b'{"a": 1} {"a": 2}',
        b'{"a": 1}}\n{"v":{"a": 2}',
        b'{"a": 1},"v":{"a": 2}',
        b'{"a": 1, "a": 2}',
        b'{"a": 1',
        b'{"b": [{"c": "x',
        b'{"d": NaN}',
        b'{"d": -Infinity}',
        b'{"a": "1"}',
        b'{"a": 9223372036854775808}',
        b'{"z": 1}',
        b'{"b": [{"c": "\xff"}]}',
        b'{"b": [{"c": "\\ud800"}]}',
        b'{"b": [{"c": "\n"}]}',
        b'{"b": ' + b"[" * 100_000,
        b"[1]",
        b"5",
    ],
)
def test_documents_that_are_not_accepted(document: bytes) -> None:
    """Alone, between others, and where two might make up for each other."""
    good = b'{"a": 1}'
    for documents in ([document], [good, document, good], [document, b"", document]):
        assert decode_lines(pa.array(documents, pa.binary()), KIND) is None


_VALUES = st.fixed_dictionaries(
    {},
    optional={
        "a": st.none() | st.integers(-(2**65), 2**65) | st.floats(allow_nan=False, allow_infinity=False),
        "b": st.none() | st.lists(st.none() | st.fixed_dictionaries({"c": st.text() | st.none() | st.integers()})),
        "d": st.floats(allow_nan=False, allow_infinity=False) | st.integers(),
        "e": st.booleans() | st.none(),
        "z": st.none(),
    },
)


@settings(max_examples=300, deadline=None)
@given(st.lists(_VALUES, min_size=1, max_size=3), st.booleans())
def test_random_documents(values: list[dict[str, Any]], ascii_only: bool) -> None:
    """What is accepted has the same value in both ways."""
    documents = [json.dumps(value, ensure_ascii=ascii_only).encode() for value in values]
    at_once = decode_lines(pa.array(documents, pa.binary()), KIND)
    if at_once is not None:
        try:
            assert at_once == pa.array([DECODE(document) for document in documents], KIND)
        except DecodeError as error:
            raise AssertionError(documents) from error
