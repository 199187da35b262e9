"""A shell in a terminal, which runs the commands of a page, and what it prints."""

import os
import pty
import re
import select
import signal
import subprocess
import termios
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[4]
# What differs from run to run: times, ids, ports, sizes, batches of a producer, what `doctor` warns of.
VOLATILE = re.compile(
    r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?|\b\d{13}\b|\b[\w-]{22}\b|:\d{4,5}\b|\b[\d.]+ (bytes|[KMG]iB)\b"
    r"|\b\d+m\d+s\b|\d+\.\.\d+( +\d+ records)?|\b\d+ (batches|notes?|warnings?)\b|─+"
    r"|\b[\d.]+ (ms|s|MB/s|records/s)(?=\W|$)|█+ +\d+/s|(?<= )\d+/s"
)
STYLE = re.compile(r"\x1b\[[\d;?]*[A-Za-z]")


BLOCK = re.compile(r"^ *```(console|python)\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
# A command, which may have several lines, and what it prints.
STEP = re.compile(r"^( *\$ (?:.*[\\|]\n)*.*\n)((?:(?! *\$ ).*\n)*)", re.MULTILINE)


class Step(NamedTuple):
    """A command of a page without its comments, or a Python program; `source` and `output` are as in the page."""

    command: str
    source: str
    output: str = ""
    is_python: bool = False

    def with_output(self, printed: str) -> str:
        """Return the text of this step in the page, with what it has printed."""
        return self.source + "".join(f"{line.rstrip()}\n" for line in printed.splitlines() if line.strip())


def steps(page: Path) -> Iterator[Step]:
    """Return the commands and programs of a page."""
    for language, block in BLOCK.findall(page.read_text()):
        if language == "python":
            yield Step(block, block, is_python=True)
            continue
        for source, output in STEP.findall(block):
            lines = [re.split(r"  +#", line)[0].strip() for line in source.splitlines()]
            yield Step(" ".join(line.removesuffix("\\") for line in lines).removeprefix("$ "), source, output)


def is_shown(output: str, printed: str) -> bool:
    """Return whether a page shows what was printed, except for what differs from run to run.

    `...` stands for any lines. A step that shows nothing may print anything.
    """
    shown = [_plain(line) for line in output.splitlines()]
    pattern = "".join(r"(?:.*\n)*" if line == "..." else re.escape(line) + r"\n" for line in shown if line)
    lines = [_plain(line) for line in printed.splitlines()]
    return not pattern or re.fullmatch(pattern, "".join(f"{line}\n" for line in lines if line)) is not None


def _plain(line: str) -> str:
    return " ".join(VOLATILE.sub("~", line).split())


class Terminal:
    """A shell whose output is a terminal of 120 columns."""

    def __init__(self, directory: Path, environment: Mapping[str, str]) -> None:
        self._master, slave = pty.openpty()
        termios.tcsetwinsize(slave, (40, 120))
        self._shell = subprocess.Popen(
            ["bash", "--norc", "--noprofile"],
            cwd=directory,
            env={**os.environ, **environment, "PAGER": "cat", "TERM": "xterm"},
            stdin=subprocess.PIPE,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
        )
        os.close(slave)
        self.run("set -o pipefail")

    def run(self, command: str, timeout_s: float = 120) -> tuple[str, int]:
        """Run a command, and return what it prints, without colors, and its exit status. Raises TimeoutError."""
        assert self._shell.stdin is not None
        # Nothing may read the next commands.
        self._shell.stdin.write(f"eval {_quoted(command)} < /dev/null\nprintf '<<%s>>' $?\n".encode())
        self._shell.stdin.flush()
        output, deadline = b"", time.monotonic() + timeout_s
        while not (end := re.search(rb"<<(\d+)>>$", output)):
            if not select.select([self._master], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise TimeoutError(f"{command}: {output!r}")
            output += os.read(self._master, 1 << 16)
        return STYLE.sub("", output[: end.start()].decode()).replace("\r\n", "\n"), int(end[1])

    def close(self) -> None:
        """End the shell, and what it has started in the background."""
        os.killpg(self._shell.pid, signal.SIGKILL)
        self._shell.wait(30)
        os.close(self._master)


def _quoted(command: str) -> str:
    return "'" + command.replace("'", "'\\''") + "'"
