"""The progress bar appears after a second, on terminals only."""

import io

import pytest

from kbroker.cli.common.progress import ProgressBar


class Terminal(io.StringIO):
    """A stream that reports a terminal."""

    def isatty(self) -> bool:
        return True


class Clock:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_the_bar_appears_after_a_second() -> None:
    clock, stream = Clock(), Terminal()
    with ProgressBar("consuming", 10, stream=stream, clock=clock) as progress:
        progress.advance(1)
        clock.now += 0.9
        progress.advance(1)
        assert not progress.is_shown
        clock.now += 0.2
        progress.advance(1)
        assert progress.is_shown
    assert "consuming" in stream.getvalue()


def test_no_bar_is_shown_within_a_second() -> None:
    stream = Terminal()
    with ProgressBar("consuming", 10, stream=stream, clock=Clock()) as progress:
        progress.advance(10)
    assert stream.getvalue() == ""


@pytest.mark.parametrize(("stream", "enabled"), [(io.StringIO(), True), (Terminal(), False)])
def test_no_bar_without_a_terminal_or_when_disabled(stream: io.StringIO, enabled: bool) -> None:
    clock = Clock()
    with ProgressBar("producing", None, enabled=enabled, stream=stream, clock=clock) as progress:
        clock.now += 60
        progress.advance(1)
        assert not progress.is_shown
    assert stream.getvalue() == ""


def test_advance_to_sets_the_amount() -> None:
    clock, stream = Clock(), Terminal()
    with ProgressBar("replaying", 10, stream=stream, clock=clock) as progress:
        progress.advance_to(4)
        clock.now += 2
        progress.advance_to(7)
    assert "7/10" in stream.getvalue()
