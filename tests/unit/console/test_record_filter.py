"""Which records a search finds, and the positions in its URLs."""

import pytest

from kbroker.cli.common.errors import CliError
from kbroker.client.consumer import ConsumedRecord
from kbroker.console.record_filter import parse_filter, parse_positions, positions_text

VALUE = b'{"id": 42, "done": true, "items": [{"name": "a b", "n": 1.5}], "a.b": null, "text": "x = y"}'
RECORD = ConsumedRecord("t", 0, 0, 0, 0, b"key-1", VALUE, (("source", b"shop"), ("empty", None)))


@pytest.mark.parametrize(
    ("query", "is_found"),
    [
        ({"key": "key-1"}, True),
        ({"key": "key"}, False),
        ({"text": "key"}, True),
        ({"text": '"id": 42'}, True),
        ({"text": "shop"}, True),
        ({"text": "sourc"}, True),
        ({"text": "nowhere"}, False),
        ({"header": "source"}, True),
        ({"header": "source=shop"}, True),
        ({"header": "source=sho"}, False),
        ({"header": "empty"}, True),
        ({"header": "empty="}, False),
        ({"json": "$.id = 42"}, True),
        ({"json": "id=42"}, True),
        ({"json": "$.id != 42"}, False),
        ({"json": '$.id = "42"'}, False),
        ({"json": "done = true"}, True),
        ({"json": "done = 1"}, False),
        ({"json": "$.items[0].name = a b"}, True),
        ({"json": "$.items[0].n = 1.5"}, True),
        ({"json": "$.items[1].n = 1.5"}, False),
        ({"json": "$.items[1].n != 1.5"}, True),
        ({"json": '$["a.b"]'}, True),
        ({"json": '$["a.b"] = null'}, True),
        ({"json": "text = x = y"}, True),
        ({"json": "nowhere"}, False),
        ({"json": "id.nowhere"}, False),
        ({"key": "key-1", "json": "id = 42", "text": "shop"}, True),
        ({"key": "key-1", "json": "id = 43"}, False),
    ],
)
def test_a_filter_finds(query: dict[str, str], is_found: bool) -> None:
    matches = parse_filter(query)
    assert matches is not None
    assert matches(RECORD) == is_found


@pytest.mark.parametrize("value", [None, b"", b"\xff", b"not JSON", b"[" * 100_000, b'"id"', b"42"])
def test_what_is_not_such_json_is_not_found(value: bytes | None) -> None:
    matches = parse_filter({"json": "id = 42"})
    assert matches is not None
    assert not matches(RECORD._replace(value=value))


def test_without_a_condition_there_is_no_filter() -> None:
    assert parse_filter({"from": "earliest", "key": ""}) is None


@pytest.mark.parametrize("path", ["$", " = 1", "$.a[", '$["a"', "a b"])
def test_a_wrong_path_is_refused(path: str) -> None:
    with pytest.raises(CliError, match="expected a JSON path"):
        parse_filter({"json": path})


def test_positions_survive_a_url() -> None:
    positions = {0: 0, 7: 2**63 - 1, 12: 5}
    assert parse_positions(positions_text(positions)) == positions


@pytest.mark.parametrize(
    "text", ["0", "0:", "0:-1", "0:1,", "0:1;1:2", "a:b", "0:\u0661", "0:" + "1" * 20, "0:1," * 20_000]
)
def test_wrong_positions_are_refused(text: str) -> None:
    with pytest.raises(CliError, match="expected positions"):
        parse_positions(text)
