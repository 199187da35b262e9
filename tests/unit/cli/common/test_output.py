"""Output: tables, JSON, the pager and progress bars."""

import fcntl
import io
import json
import os
import pty
import struct
import subprocess
import sys
import termios

import pytest

from kbroker.cli.common.output import ProgressBar, align, print_heading, print_json, print_table


def test_a_table_in_a_pipe_is_aligned_columns_with_numbers_to_the_right(capsys: pytest.CaptureFixture[str]) -> None:
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


def test_a_table_on_a_terminal_is_drawn_by_rich(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "80")
    print_heading("orders", "3 partitions")
    print_table(("topic", "lag"), [["[red]a[/red]", 5], ["b", None]])
    output = capsys.readouterr().out
    assert "─" in output
    assert "[red]a[/red]" in output  # not interpreted as rich markup


def test_json_is_not_escaped_to_ascii(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"näme": [1, None]})
    output = capsys.readouterr().out
    assert "näme" in output
    assert json.loads(output) == {"näme": [1, None]}


def test_a_heading_in_a_pipe_is_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    print_heading("a", "b")
    print_heading("a")
    assert capsys.readouterr().out == "a  b\na\n"


LISTING = """
import sys
from typing import Annotated
from kbroker.cli import app
from kbroker.cli.common.output import print_heading, print_table
from kbroker.cli.common.output import paginated

@app.app.command("numbers")
@paginated
def numbers(count: int) -> None:
    print_heading("numbers", "all of them")
    print_table(("number",), [[number] for number in range(count)])

sys.exit(app.run(sys.argv[1:]))
"""
WORK = """
from kbroker.cli.common.output import ProgressBar

moments = iter([0.0, 2.0, 3.0])
with ProgressBar("counting", 2, clock=lambda: next(moments)) as work:
    work.advance(1)
    work.advance(1)
print("done")
"""
ROWS, COLUMNS = 24, 80
PAGER = "sed s/^/paged:/"


def environment(**variables: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in ("LINES", "COLUMNS", "NO_COLOR", "PAGER")}
    return {**kept, "TERM": "xterm", "PAGER": PAGER, **variables}


def in_terminal(program: str, *arguments: str, **variables: str) -> str:
    """Return what a Python program writes to a terminal of 24 lines."""
    controller, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    command = [sys.executable, "-c", program, *arguments]
    with subprocess.Popen(
        command, stdin=terminal, stdout=terminal, stderr=terminal, env=environment(**variables)
    ) as process:
        os.close(terminal)
        written = b""
        while True:
            try:
                part = os.read(controller, 65536)
            except OSError:  # EIO: the process has exited
                break
            if not part:
                break
            written += part
        os.close(controller)
        assert process.wait(60) == 0, written
    return written.decode().replace("\r\n", "\n")


def in_pipe(program: str, *arguments: str) -> tuple[str, str]:
    command = [sys.executable, "-c", program, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(), timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


def test_long_output_goes_through_the_pager() -> None:
    lines = in_terminal(LISTING, "numbers", "100").splitlines()
    assert len(lines) > 100
    assert all(line.startswith("paged:") for line in lines)


@pytest.mark.parametrize(
    ("arguments", "variables"),
    [
        (["numbers", "5"], {}),
        (["numbers", "100", "--no-pager"], {}),
        (["numbers", "100"], {"PAGER": ""}),
        (["numbers", "100"], {"PAGER": "cat"}),
        (["numbers", "100"], {"PAGER": "no-such-pager"}),
    ],
)
def test_short_output_and_disabled_pagers_are_not_paged(arguments: list[str], variables: dict[str, str]) -> None:
    output = in_terminal(LISTING, *arguments, **variables)
    assert "paged:" not in output
    assert "\x1b[" in output
    assert "4" in output


def test_no_color_disables_colors() -> None:
    coloured = in_terminal(LISTING, "numbers", "5")
    plain = in_terminal(LISTING, "numbers", "5", NO_COLOR="1")
    assert "\x1b[1;36m" in coloured
    assert "36m" not in plain


def test_output_in_a_pipe_is_plain_lines() -> None:
    out, err = in_pipe(LISTING, "numbers", "100")
    assert err == ""
    lines = out.splitlines()
    assert lines[:2] == ["numbers  all of them", "NUMBER"]
    assert [int(line) for line in lines[2:]] == list(range(100))


def test_a_progress_bar_is_drawn_on_terminals_only() -> None:
    assert "counting" in in_terminal(WORK)
    assert in_pipe(WORK) == ("done\n", "")


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
        assert not progress._bar
        clock.now += 0.2
        progress.advance(1)
        assert progress._bar
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
        assert not progress._bar
    assert stream.getvalue() == ""


def test_advance_to_sets_the_amount() -> None:
    clock, stream = Clock(), Terminal()
    with ProgressBar("replaying", 10, stream=stream, clock=clock) as progress:
        progress.advance_to(4)
        clock.now += 2
        progress.advance_to(7)
    assert "7/10" in stream.getvalue()
