"""The programs of these tests as processes that are killed, frozen and started again, and what they print."""

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

from scripts.benchmark.peers import QUIET, kafka_classpath
from tests.compat.support import DEADLINE_S
from tests.compat.transactions.programs.stages import GIVEN_UP

PROGRAMS = Path(__file__).with_name("programs")


def commands(directory: Path) -> dict[str, list[str]]:
    """How each client's program is started; compiles what is Java into `directory`."""
    found = {
        "confluent_kafka": [sys.executable, str(PROGRAMS / "flow_confluent.py")],
        "kafka_python": [sys.executable, str(PROGRAMS / "flow_python.py")],
    }
    if shutil.which("java") and shutil.which("mvn"):
        compiled(PROGRAMS / "Flow.java", directory, kafka_classpath())
        found["kafka_tools"] = java("Flow", f"{directory}:{kafka_classpath()}")
    return found


def compiled(source: Path, directory: Path, classpath: str) -> None:
    command = ["javac", "-proc:none", "-nowarn", "-d", str(directory), "-cp", classpath, str(source)]
    subprocess.run(command, check=True)


def java(main: str, classpath: str) -> list[str]:
    quick = ["-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto", QUIET.replace("warn", "off")]
    return ["java", *quick, "-cp", classpath, main]


class Program:
    """One process after another with the same arguments."""

    def __init__(self, command: Sequence[str], directory: Path, client_id: str = "") -> None:
        """`client_id`: its consumer's, where a test needs that."""
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
        self._starts = number  # from here on the outputs are read, also by other threads

    def revive(self) -> None:
        """Starts it again when it has given up; any other end is a failure."""
        if self._process is not None and (code := self._process.poll()) is not None:
            assert code == GIVEN_UP, f"ended with {code}: {self.tail()}"
            self.start()
            if self._stop_at:
                self._say(self._stop_at)

    def count(self, stage: str) -> int:
        """How often a stage was reached, over all starts."""
        return sum(path.read_bytes().count(b"\n%s\n" % stage.encode()) for path in self._outputs())

    def seen(self) -> Counter[str]:
        return Counter(line.partition(":")[0] for line in self.lines())

    def failures(self) -> int:
        """How often it was told that a transaction is not to be."""
        seen = self.seen()
        return seen["aborted"] + seen["gave up"]

    def lines(self) -> list[str]:
        return [line for path in self._outputs() for line in path.read_text().splitlines()]

    def stop_at(self, stage: str) -> None:
        """It waits when it gets there next."""
        self._stop_at = stage
        self._stops = self.count(f"stopped {stage}")
        self._say(stage)

    def stopped(self) -> bool:
        """Whether it has stopped at the stage that `stop_at` named last."""
        return self.count(f"stopped {self._stop_at}") > self._stops

    def go_on(self) -> None:
        self._stop_at = ""
        self._say("")

    def freeze(self) -> None:
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        """kill -9."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(DEADLINE_S)
            assert self._process.stdin is not None
            self._process.stdin.close()
            self._process = None
            self._stop_at = ""

    def _say(self, line: str) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(line.encode() + b"\n")
        self._process.stdin.flush()

    def _signal(self, which: signal.Signals) -> None:
        assert self._process is not None
        os.kill(self._process.pid, which)

    def _outputs(self) -> list[Path]:
        return [self._directory / f"output-{start}" for start in range(1, self._starts + 1)]

    def _output(self) -> Path:
        return self._directory / f"output-{self._starts}"

    def tail(self) -> str:
        """What it said last."""
        output = self._output().read_text().splitlines()[-5:]
        errors = (self._directory / f"errors-{self._starts}").read_text()[-3000:]
        return f"{self.name}: {' '.join(output)}\n{errors}"


class Transaction(NamedTuple):
    """What a program has printed of one of its transactions."""

    member: str
    inputs: dict[int, range]  # by partition
    outcome: str  # empty while it is open, and of a program that was killed

    def __str__(self) -> str:
        inputs = " ".join(f"{partition}:{taken[0]}-{taken[-1]}" for partition, taken in self.inputs.items())
        return f"{inputs} as {self.member or 'no member'}: {self.outcome or 'not known'}"


def transactions(lines: Sequence[str]) -> Iterator[Transaction]:
    """The transactions in a program's output."""
    opened: Transaction | None = None
    for line in lines:
        if line.startswith("took as "):
            if opened is not None:
                yield opened
            member, _, ranges = line.removeprefix("took as ").rpartition(": ")
            found = re.findall(r"(\d+):(\d+)-(\d+)", ranges)
            opened = Transaction(member, {int(part): range(int(a), int(b) + 1) for part, a, b in found}, "")
        elif opened is not None and (line == "committed" or line.startswith(("aborted", "gave up"))):
            yield opened._replace(outcome=line)
            opened = None
    if opened is not None:
        yield opened
