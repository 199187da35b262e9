"""Pager, colors and progress bar in a terminal, and their absence in a pipe."""

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios

import pytest

LISTING = """
import sys
from typing import Annotated
from kbroker.cli import app
from kbroker.cli.common.output import print_heading, print_table
from kbroker.cli.common.pager import paginated

@app.app.command("numbers")
@paginated
def numbers(count: int) -> None:
    print_heading("numbers", "all of them")
    print_table(("number",), [[number] for number in range(count)])

sys.exit(app.run(sys.argv[1:]))
"""
WORK = """
from kbroker.cli.common.progress import ProgressBar

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
