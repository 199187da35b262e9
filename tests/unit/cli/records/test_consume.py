"""`kbroker consume`: offset ranges, output and signals."""

import io
import sys
import types
from typing import Any

import pytest

from kbroker.cli.common.values import PartitionPosition
from kbroker.cli.records.consume import RecordSelection
from kbroker.cli.records.polling import Printer, resolve_position
from kbroker.client.consumer import CREATE_TIME, ConsumedRecord
from kbroker.common import TopicPartition

A, B = TopicPartition("t", 0), TopicPartition("t", 1)
LOG_START = {A: 10, B: 0}
LOG_END = {A: 100, B: 5}


@pytest.mark.parametrize(
    ("position", "expected"),
    [
        (PartitionPosition("earliest"), {A: 10, B: 0}),
        (PartitionPosition("latest"), {A: 100, B: 5}),
        (PartitionPosition("offset", 50), {A: 50, B: 5}),
        (PartitionPosition("offset", 3), {A: 10, B: 3}),
        (PartitionPosition("last", 2), {A: 98, B: 3}),
        (PartitionPosition("last", 1000), {A: 10, B: 0}),
    ],
)
def test_positions_are_clamped_to_the_log(position: PartitionPosition, expected: dict[object, int]) -> None:
    assert resolve_position(position, LOG_START, LOG_END, {}) == expected


def test_a_time_after_the_last_record_is_the_log_end() -> None:
    assert resolve_position(PartitionPosition("time", 7), LOG_START, LOG_END, {A: 42, B: -1}) == {A: 42, B: 5}


def test_with_follow_the_end_may_be_a_future_offset() -> None:
    assert resolve_position(PartitionPosition("offset", 500), LOG_START, LOG_END, {}, clamp_to_end=False) == {
        A: 500,
        B: 500,
    }


def record(
    value: bytes | None, key: bytes | None = None, headers: tuple[tuple[str, bytes | None], ...] = ()
) -> ConsumedRecord:
    return ConsumedRecord("t", 0, 0, 0, CREATE_TIME, key, value, headers)


@pytest.mark.parametrize(
    ("selection", "selected"),
    [
        (RecordSelection(grep="^a.*é$"), ["accents"]),
        (RecordSelection(grep=""), ["accents", "empty", "headers", "null"]),
        (RecordSelection(key="k"), ["accents"]),
        (RecordSelection(key=""), ["empty"]),
        (RecordSelection(header=["h=1"]), ["empty", "headers"]),
        (RecordSelection(header=["h=1", "h="]), ["headers"]),
        (RecordSelection(grep="x", header=["h=1"]), []),
    ],
)
def test_records_are_selected_by_all_conditions(selection: RecordSelection, selected: list[str]) -> None:
    records = {
        "accents": record("a b é".encode(), b"k"),
        "empty": record(b"\xff", b"", (("h", b"1"),)),
        "headers": record(b"x"[:0], None, (("h", b"1"), ("h", b""))),
        "null": record(None, b"kk", (("h", None),)),
    }
    selects = selection.filter()
    assert selects is not None
    assert [name for name, each in records.items() if selects(each)] == selected


def test_without_a_condition_there_is_no_filter() -> None:
    assert RecordSelection().filter() is None


class PartialWriter(io.BytesIO):
    """Writes at most three bytes per call, as an unbuffered pipe may."""

    def write(self, data: Any) -> int:
        return super().write(bytes(data[:3]))


def test_partial_writes_are_continued(monkeypatch: pytest.MonkeyPatch) -> None:
    out = PartialWriter()
    monkeypatch.setattr(sys, "stdout", types.SimpleNamespace(buffer=out))
    Printer(lambda record: record.value or b"").print([record(b"one"), record(b""), record(b"three")])
    assert out.getvalue() == b"one\n\nthree\n"
