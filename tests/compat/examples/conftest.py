"""A broker for each system of examples/, and its programs as processes."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from kbroker.testing import Broker
from tests.compat.support import DEADLINE_S, eventually, need_own_broker

ROOT = Path(__file__).parents[3]


class System:
    """The broker of a system, and its programs. They run in `directory`, which is empty at first."""

    def __init__(self, kafka: Broker, directory: Path) -> None:
        self.kafka = kafka
        self.directory = directory
        self._programs: list[Program] = []

    def start(self, path: str, *arguments: object, **environment: str) -> "Program":
        """Start examples/`path`."""
        return self.run(ROOT / "examples" / path, *arguments, **environment)

    def run(self, *arguments: object, **environment: str) -> "Program":
        """Start Python with these arguments."""
        log = self.directory / f"log-{len(self._programs)}"
        self._programs.append(Program([sys.executable, *arguments], log, self._environment(environment)))
        return self._programs[-1]

    def kbroker(self, *arguments: str) -> str:
        """Run a command, which must succeed, and return what it prints."""
        command = [sys.executable, "-m", "kbroker", *arguments]
        done = subprocess.run(command, cwd=self.directory, env=self._environment({}), capture_output=True, text=True)
        assert done.returncode == 0, f"{arguments}: {done.stdout}{done.stderr}"
        return done.stdout

    def values(self, topic: str) -> list[Any]:
        """Return the committed values of a topic."""
        return [record.value for record in self.kafka.consume(topic, read_committed=True)]

    def end(self) -> None:
        for program in self._programs:
            program.end()

    def _environment(self, more: dict[str, str]) -> dict[str, str]:
        return {**os.environ, "PYTHONPATH": str(ROOT), "KBROKER_BOOTSTRAP": self.kafka.bootstrap, **more}


class Program:
    """A process, whose output is in a file."""

    def __init__(self, command: list[object], log: Path, environment: dict[str, str]) -> None:
        self._log = log
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [str(part) for part in command],
                cwd=log.parent,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )

    def lines(self) -> list[str]:
        return self._log.read_text().splitlines()

    def wait_for(self, text: str, count: int = 1) -> None:
        """Wait until `count` lines have the text. Fails if the process ends before that."""

        def is_there() -> bool:
            has_ended = self._process.poll() is not None
            is_printed = sum(text in line for line in self.lines()) >= count
            assert is_printed or not has_ended, f"ended with {self._process.returncode}: {self.lines()}"
            return is_printed

        eventually(is_there, f"{count} times {text!r} in {self._log}", interval=0.01)

    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def kill(self) -> None:
        """kill -9: no handler runs."""
        self._process.kill()
        assert self._process.wait(DEADLINE_S) == -signal.SIGKILL, self.lines()

    def stop(self) -> None:
        """Send SIGTERM. Fails unless the program ends cleanly."""
        self._process.send_signal(signal.SIGTERM)
        assert self._process.wait(DEADLINE_S) == 0, self.lines()

    def end(self) -> None:
        with suppress(ProcessLookupError):
            self._process.kill()
        self._process.wait(DEADLINE_S)


@pytest.fixture
def system(tmp_path: Path) -> Iterator[System]:
    need_own_broker()
    with Broker() as kafka:
        system = System(kafka, tmp_path)
        try:
            yield system
        finally:
            system.end()
