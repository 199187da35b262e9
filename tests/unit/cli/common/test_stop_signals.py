"""Asking a command on Spark to end: counted once, however many copies of a signal arrive together."""

import os
import signal

import pytest

from kbroker.cli.common import stop_signals as signals
from kbroker.cli.common.stop_signals import SIGNALS, StopSignals


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(signals, "monotonic", lambda: now[0])
    return now


def test_copies_of_a_signal_count_once(clock: list[float]) -> None:
    asked: list[int] = []
    with StopSignals(asked.append):
        for number in SIGNALS:
            os.kill(os.getpid(), number)
        assert asked == [1]
        clock[0] += 0.4
        os.kill(os.getpid(), signal.SIGTERM)
        assert asked == [1]
        clock[0] += 0.2
        os.kill(os.getpid(), signal.SIGTERM)
        assert asked == [1, 2]


def test_signals_that_somebody_took_are_taken_again_and_given_back(clock: list[float]) -> None:
    asked: list[int] = []
    before = [signal.getsignal(number) for number in SIGNALS]
    with StopSignals(asked.append) as stop:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        stop.install()
        os.kill(os.getpid(), signal.SIGINT)
    assert asked == [1]
    assert [signal.getsignal(number) for number in SIGNALS] == before
