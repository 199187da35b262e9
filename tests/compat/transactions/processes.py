"""The programs in programs/ as processes that a test kills, freezes and restarts, and their output."""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.compat.java_programs import classpath_of, java_command
from tests.compat.support import DEADLINE_S
from tests.compat.transactions.programs.stages import GIVEN_UP

PROGRAMS = Path(__file__).with_name("programs")


def python_commands() -> dict[str, list[str]]:
    """Return the command of the program of each Python client."""
    return {
        "confluent_kafka": [sys.executable, str(PROGRAMS / "flow_confluent.py")],
        "kafka_python": [sys.executable, str(PROGRAMS / "flow_python.py")],
    }


def program_commands() -> dict[str, list[str]]:
    """Return the command of each client's program."""
    commands = python_commands()
    if shutil.which("java") and shutil.which("mvn"):
        commands["kafka_tools"] = java_command("Flow", classpath_of(PROGRAMS / "Flow.java"))
    return commands


class Program:
    """One process at a time, restarted with the same arguments."""

    def __init__(self, command: Sequence[str], directory: Path, client_id: str = "") -> None:
        """`client_id`: the client id of its consumer, for tests that look it up in the group."""
        self._command = list(command)
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None
        self._starts = 0
        self._stop_at = ""
        self._stops = 0
        self.client_id = client_id
        self.name = directory.name
        directory.mkdir()

    def start(self) -> None:
        number = self._starts + 1
        output, errors = self._directory / f"output-{number}", self._directory / f"errors-{number}"
        with output.open("wb") as stdout, errors.open("wb") as stderr:
            self._process = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=stdout, stderr=stderr)
        self._starts = number  # set last: other threads read the output files of all starts

    def restart_if_given_up(self) -> None:
        """Restart it if it has given up. It fails if it has ended in another way."""
        if self._process is not None and (code := self._process.poll()) is not None:
            assert code == GIVEN_UP, f"ended with {code}: {self.tail()}"
            self.start()
            if self._stop_at:
                self._send_line(self._stop_at)

    def count(self, stage: str) -> int:
        """Return how often a stage was reached, over all starts."""
        return sum(path.read_bytes().count(b"\n%s\n" % stage.encode()) for path in self.outputs())

    def line_counts(self) -> Counter[str]:
        """Return how often each line was printed, without what follows a colon."""
        return Counter(line.partition(":")[0] for line in self.lines())

    def failures(self) -> int:
        """Return the number of failed transactions."""
        counts = self.line_counts()
        return counts["aborted"] + counts["gave up"]

    def lines(self) -> list[str]:
        return [line for path in self.outputs() for line in path.read_text().splitlines()]

    def stop_at(self, stage: str) -> None:
        """Stop it when it reaches this stage next."""
        self._stop_at = stage
        self._stops = self.count(f"stopped {stage}")
        self._send_line(stage)

    def is_stopped(self) -> bool:
        """Return whether it has stopped at the stage of the latest `stop_at`."""
        return self.count(f"stopped {self._stop_at}") > self._stops

    def resume(self) -> None:
        self._stop_at = ""
        self._send_line("")

    def freeze(self) -> None:
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        """Kill the process (kill -9)."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(DEADLINE_S)
            assert self._process.stdin is not None
            self._process.stdin.close()
            self._process = None
            self._stop_at = ""

    def _send_line(self, line: str) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(line.encode() + b"\n")
        self._process.stdin.flush()

    def _signal(self, which: signal.Signals) -> None:
        assert self._process is not None
        os.kill(self._process.pid, which)

    def outputs(self) -> list[Path]:
        """Return the output files of all starts."""
        return [self._directory / f"output-{start}" for start in range(1, self._starts + 1)]

    def _output(self) -> Path:
        return self._directory / f"output-{self._starts}"

    def tail(self) -> str:
        """Return the end of its output and of its errors."""
        output = self._output().read_text().splitlines()[-5:]
        errors = (self._directory / f"errors-{self._starts}").read_text()[-3000:]
        return f"{self.name}: {' '.join(output)}\n{errors}"


class Transaction(NamedTuple):
    """One transaction, as a program has printed it."""

    member: str
    inputs: dict[int, range]  # by partition
    outcome: str  # empty while it is open, or if the program was killed

    def __str__(self) -> str:
        inputs = " ".join(f"{partition}:{offsets[0]}-{offsets[-1]}" for partition, offsets in self.inputs.items())
        return f"{inputs} as {self.member or 'no member'}: {self.outcome or 'unknown'}"


def transactions(lines: Sequence[str]) -> Iterator[Transaction]:
    """Parse the transactions in a program's output."""
    opened: Transaction | None = None
    for line in lines:
        if line.startswith("took as "):
            if opened is not None:
                yield opened
            member, _, ranges = line.removeprefix("took as ").rpartition(": ")
            ranges_found = re.findall(r"(\d+):(\d+)-(\d+)", ranges)
            opened = Transaction(member, {int(part): range(int(a), int(b) + 1) for part, a, b in ranges_found}, "")
        elif opened is not None and (line == "committed" or line.startswith(("aborted", "gave up"))):
            yield opened._replace(outcome=line)
            opened = None
    if opened is not None:
        yield opened
