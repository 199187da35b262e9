"""Where a consume begins and ends."""

import io
import os
import signal
import sys
import types
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from kbroker.cli.common.parsing import Position
from kbroker.cli.records.consume import Printer, StopSignals, resolve

A, B = ("t", 0), ("t", 1)
FIRST = {A: 10, B: 0}
LAST = {A: 100, B: 5}


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        (Position("earliest"), {A: 10, B: 0}),
        (Position("latest"), {A: 100, B: 5}),
        (Position("offset", 50), {A: 50, B: 5}),
        (Position("offset", 3), {A: 10, B: 3}),
        (Position("last", 2), {A: 98, B: 3}),
        (Position("last", 1000), {A: 10, B: 0}),
    ],
)
def test_a_place_lies_within_the_log(place: Position, expected: dict[object, int]) -> None:
    assert resolve(place, FIRST, LAST, {}) == expected


def test_a_time_after_the_last_record_is_the_end() -> None:
    assert resolve(Position("time", 7), FIRST, LAST, {A: 42, B: None}) == {A: 42, B: 5}


def test_what_is_still_to_come_can_be_an_end_when_it_is_waited_for() -> None:
    assert resolve(Position("offset", 500), FIRST, LAST, {}, clamp_to_end=False) == {A: 500, B: 500}


class Record(NamedTuple):
    """As much of a consumed record as plain output needs."""

    value: bytes
    key: bytes | None = None


class Dribble(io.BytesIO):
    """Takes three bytes at a time, as a pipe without a buffer may."""

    def write(self, data: Any) -> int:
        return super().write(bytes(data[:3]))


def test_output_is_whole_where_a_write_takes_a_part(monkeypatch: pytest.MonkeyPatch) -> None:
    out = Dribble()
    monkeypatch.setattr(sys, "stdout", types.SimpleNamespace(buffer=out))
    Printer(as_json=False, separator=None, pretty=False).print([Record(b"one"), Record(b""), Record(b"three")])
    assert out.getvalue() == b"one\n\nthree\n"


@pytest.fixture
def stop_signals() -> Iterator[StopSignals]:
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield StopSignals()
    for number, handler in handlers.items():
        signal.signal(number, handler)


def poll(stop_signals: StopSignals, number: int, times: int, steps: list[str]) -> None:
    with stop_signals.later():
        for _ in range(times):
            os.kill(os.getpid(), number)
        steps.append("the poll ends")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_is_heeded_when_the_poll_is_over_a_second_one_at_once(stop_signals: StopSignals, number: int) -> None:
    steps: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        poll(stop_signals, number, 1, steps)
    assert steps == ["the poll ends"]
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), number)
    with pytest.raises(KeyboardInterrupt):
        poll(stop_signals, number, 2, steps)
    assert steps == ["the poll ends"]
