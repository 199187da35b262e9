"""Stop requests by signals."""

import os
import signal
from contextlib import suppress

import pytest

from kbroker.cli.common import stop_signals as signals
from kbroker.cli.common.stop_signals import SIGNALS, Interrupts, StopSignals


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(signals, "monotonic", lambda: now[0])
    return now


def test_simultaneous_signals_count_once(clock: list[float]) -> None:
    stops: list[int] = []
    with StopSignals(stops.append):
        for number in SIGNALS:
            os.kill(os.getpid(), number)
        assert stops == [1]
        clock[0] += 0.4
        os.kill(os.getpid(), signal.SIGTERM)
        assert stops == [1]
        clock[0] += 0.2
        os.kill(os.getpid(), signal.SIGTERM)
        assert stops == [1, 2]


def test_replaced_handlers_are_installed_again_and_restored_at_the_end(clock: list[float]) -> None:
    stops: list[int] = []
    previous = [signal.getsignal(number) for number in SIGNALS]
    with StopSignals(stops.append) as stop_signals:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        stop_signals.install()
        os.kill(os.getpid(), signal.SIGINT)
    assert stops == [1]
    assert [signal.getsignal(number) for number in SIGNALS] == previous


def test_an_interrupt_that_is_ignored_is_raised_again() -> None:
    previous = signal.getsignal(signal.SIGINT)
    with Interrupts() as interrupts:
        interrupts.check()
        with suppress(BaseException):  # as in a finalizer
            os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            interrupts.check()
    assert signal.getsignal(signal.SIGINT) == previous


def test_an_interrupt_is_raised_at_once() -> None:
    with pytest.raises(KeyboardInterrupt), Interrupts():
        os.kill(os.getpid(), signal.SIGINT)
