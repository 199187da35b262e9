"""Tables, JSON and progress."""

import io
import json

import pytest

from kbroker.cli.common.formatting import count_text
from kbroker.cli.common.output import align, print_heading, print_json, print_table
from kbroker.cli.common.progress import ProgressBar


def test_in_a_pipe_a_table_is_aligned_text_with_numbers_to_the_right(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_table(("topic", "lag", "client id"), [["a", 5, None], ["longer", 1000, "x"]])
    assert capsys.readouterr().out == (
        "TOPIC    LAG  CLIENT_ID\n"
        "a          5  -\n"
        "longer  1000  x\n"
    )  # fmt: skip


def test_an_empty_table_has_its_header(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("topic", "lag"), [])
    assert capsys.readouterr().out == "TOPIC  LAG\n"


def test_no_line_ends_in_blanks() -> None:
    assert align([["a", "b"], ["ccc", ""]], [False, False]) == "a    b\nccc"


def test_on_a_terminal_it_is_a_table_for_eyes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "80")
    print_heading("orders", "3 partitions")
    print_table(("topic", "lag"), [["[red]a[/red]", 5], ["b", None]])
    shown = capsys.readouterr().out
    assert "─" in shown
    assert "[red]a[/red]" in shown  # a name is text, never markup


def test_json_keeps_letters_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"näme": [1, None]})
    shown = capsys.readouterr().out
    assert "näme" in shown
    assert json.loads(shown) == {"näme": [1, None]}


def test_a_heading_in_a_pipe_is_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    print_heading("a", "b")
    print_heading("a")
    assert capsys.readouterr().out == "a  b\na\n"


def test_counted() -> None:
    assert [count_text(n, "record") for n in (0, 1, 2)] == ["0 records", "1 record", "2 records"]


class Terminal(io.StringIO):
    """A stream that calls itself a terminal."""

    def isatty(self) -> bool:
        return True


class Clock:
    """A clock that moves when it is told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_progress_is_shown_after_a_second() -> None:
    clock, stream = Clock(), Terminal()
    with ProgressBar("consuming", 10, stream=stream, clock=clock) as work:
        work.advance(1)
        clock.now += 0.9
        work.advance(1)
        assert not work.is_shown
        clock.now += 0.2
        work.advance(1)
        assert work.is_shown
    assert "consuming" in stream.getvalue()


def test_quick_work_shows_nothing() -> None:
    stream = Terminal()
    with ProgressBar("consuming", 10, stream=stream, clock=Clock()) as work:
        work.advance(10)
    assert stream.getvalue() == ""


@pytest.mark.parametrize(("stream", "wanted"), [(io.StringIO(), True), (Terminal(), False)])
def test_progress_is_for_terminals_and_where_it_is_wanted(stream: io.StringIO, wanted: bool) -> None:
    clock = Clock()
    with ProgressBar("producing", None, enabled=wanted, stream=stream, clock=clock) as work:
        clock.now += 60
        work.advance(1)
        assert not work.is_shown
    assert stream.getvalue() == ""
