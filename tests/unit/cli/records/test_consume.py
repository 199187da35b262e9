"""`kbroker consume`: offset ranges, output and signals."""

import io
import sys
import types
from typing import Any

import pytest

from kbroker.cli.common.values import PartitionPosition
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


def record(value: bytes) -> ConsumedRecord:
    return ConsumedRecord("t", 0, 0, 0, CREATE_TIME, None, value, ())


class PartialWriter(io.BytesIO):
    """Writes at most three bytes per call, as an unbuffered pipe may."""

    def write(self, data: Any) -> int:
        return super().write(bytes(data[:3]))


def test_partial_writes_are_continued(monkeypatch: pytest.MonkeyPatch) -> None:
    out = PartialWriter()
    monkeypatch.setattr(sys, "stdout", types.SimpleNamespace(buffer=out))
    Printer(as_json=False, separator=None, for_terminal=False).print([record(b"one"), record(b""), record(b"three")])
    assert out.getvalue() == b"one\n\nthree\n"
