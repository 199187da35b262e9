"""The formats of produced and consumed records."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.cli.common.errors import CliError
from kbroker.cli.records.formats import (
    ProducerRecord,
    parse_format,
    parse_headers,
    printable,
    record_from_json,
    record_from_line,
    to_json,
    to_plain,
    to_terminal,
)
from kbroker.client.consumer import CREATE_TIME, ConsumedRecord


def consumed(
    key: bytes | None = None,
    value: bytes | None = b"v",
    headers: Sequence[tuple[str, bytes | None]] = (),
    timestamp: int = 1_795_000_000_000,
    timestamp_type: int = CREATE_TIME,
) -> ConsumedRecord:
    return ConsumedRecord("orders", 3, 17, timestamp, timestamp_type, key, value, tuple(headers))


def test_a_line_is_a_value_or_key_and_value() -> None:
    assert record_from_line(b"a:b:c", None) == ProducerRecord(None, b"a:b:c", [])
    assert record_from_line(b"a:b:c", b":") == ProducerRecord(b"a", b"b:c", [])
    assert record_from_line(b"", None) == ProducerRecord(None, b"", [])


def test_a_line_without_the_separator_is_rejected() -> None:
    with pytest.raises(CliError, match="no key separator ':'"):
        record_from_line(b"abc", b":")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b'{"key": "k", "value": "v"}', ProducerRecord(b"k", b"v", [])),
        (b'{"key": "k", "value": null}', ProducerRecord(b"k", None, [])),
        (b'{"value": {"a": [1, "\xc3\xa9"]}}', ProducerRecord(None, '{"a":[1,"é"]}'.encode(), [])),
        (b'{"value": 5}', ProducerRecord(None, b"5", [])),
        (b'{"value_base64": "//8="}', ProducerRecord(None, b"\xff\xff", [])),
        (b'{"value": "v", "headers": {"h": "1", "n": null}}', ProducerRecord(None, b"v", [("h", b"1"), ("n", None)])),
        (
            b'{"value": "v", "headers": [{"key": "h", "value": "1"}, {"key": "h", "value_base64": "AA=="}]}',
            ProducerRecord(None, b"v", [("h", b"1"), ("h", b"\0")]),
        ),
        (b'{"value": "v", "partition": 2, "timestamp": 5}', ProducerRecord(None, b"v", [], 2, 5)),
    ],
)
def test_json_records(line: bytes, expected: ProducerRecord) -> None:
    assert record_from_json(line) == expected


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"{", "not valid JSON"),
        (b"\xff", "not valid JSON"),
        (b"[1]", "not a JSON object"),
        (b'{"value": "v", "headers": [1]}', "headers must be"),
        (b'{"value": "v", "headers": 5}', "headers must be"),
        (b'{"value": "v", "partition": -1}', "partition must be"),
        (b'{"value": "v", "partition": true}', "partition must be"),
        (b'{"value": "v", "timestamp": "now"}', "timestamp must be"),
        (b'{"value_base64": "?"}', "not base64"),
        (b'{"value_base64": 5}', "not base64"),
        (b'{"value": "\\ud800"}', "surrogate"),
    ],
)
def test_invalid_json_records_are_rejected_with_the_reason(line: bytes, reason: str) -> None:
    with pytest.raises(CliError, match=reason):
        record_from_json(line)


texts = st.none() | st.binary(max_size=20) | st.text(max_size=10).map(str.encode)
names = st.text(max_size=8)


@given(texts, texts, st.lists(st.tuples(names, texts), max_size=3))
def test_json_round_trip(key: bytes | None, value: bytes | None, headers: list[tuple[str, bytes | None]]) -> None:
    line = to_json(consumed(key, value, headers))
    assert b"\n" not in line
    assert record_from_json(line) == ProducerRecord(key, value, headers, 3, 1_795_000_000_000)


def test_json_has_all_fields_but_no_timestamp_if_there_is_none() -> None:
    fields: dict[str, Any] = json.loads(to_json(consumed(timestamp_type=1)))
    assert fields["topic"] == "orders"
    assert (fields["partition"], fields["offset"], fields["timestamp_type"]) == (3, 17, "LogAppendTime")
    assert "timestamp" not in json.loads(to_json(consumed(timestamp=-1)))


def test_plain_output_is_the_value_unchanged() -> None:
    assert to_plain(consumed(b"k", b"\xff\x00"), None) == b"\xff\x00"
    assert to_plain(consumed(b"k", b"v"), b"\t") == b"k\tv"
    assert to_plain(consumed(None, None), b"\t") == b"\t"


@pytest.mark.parametrize(
    ("format", "text"),
    [
        (r"%t %p %o %T\n", b"orders 3 17 1795000000000\n"),
        (r"%k=%s\t%K/%S", b"k%d=v\xff\t3/2"),
        ("%h", b"h=1,n=NULL,h="),
        (r"100%% \\ \x25s \x00", b"100% \\ %s \0"),
        ("é\n", "é\n".encode()),
        ("", b""),
    ],
)
def test_a_format_has_the_letters_of_kcat(format: str, text: bytes) -> None:
    assert parse_format(format)(consumed(b"k%d", b"v\xff", [("h", b"1"), ("n", None), ("h", b"")])) == text


def test_null_has_the_length_minus_one_in_a_format() -> None:
    assert parse_format("[%k%s]%K%S")(consumed(None, None)) == b"[]-1-1"


@pytest.mark.parametrize("format", ["%q", "%", "a\\", r"\x2", r"\e", "%5s"])
def test_other_letters_are_wrong_usage(format: str) -> None:
    with pytest.raises(CliError, match=r"--format: .* is none of %t") as error:
        parse_format(format)
    assert error.value.status == 2


def test_control_characters_are_escaped_on_a_terminal() -> None:
    hostile = b"\x1b]0;owned\x07\r\nnext"
    line = to_terminal(consumed(hostile, hostile, [("h\x1b[2J", hostile)]), colors=False)
    assert b"\x1b" not in line
    assert b"\n" not in line
    assert b"\r" not in line
    assert b"\\x1b]0;owned\\x07\\r\\nnext" in line


def test_the_terminal_line_has_the_position_of_the_record() -> None:
    line = to_terminal(consumed(b"k", None), colors=False).decode()
    assert line.startswith("orders-3@17  20")
    assert line.endswith("k  null")
    assert "\x1b[36mk" in to_terminal(consumed(b"k"), colors=True).decode()


def test_printable_text_is_unchanged() -> None:
    assert printable("naïve, 東京\tx".encode()) == "naïve, 東京\tx"
    assert printable(b"\xff") == "\\xff"


def test_headers_may_repeat() -> None:
    assert parse_headers(["a=1", "a=", "b=x=y"]) == [("a", b"1"), ("a", b""), ("b", b"x=y")]
    with pytest.raises(CliError, match="NAME=VALUE"):
        parse_headers(["a"])
