"""Fixtures that run the `kbroker` command."""

import json
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from kbroker.cli import main

TIMEOUT_S = 180

COMMAND = [sys.executable, "-m", "kbroker"]


@dataclass(frozen=True)
class CommandResult:
    """Output and exit status of a command."""

    out: str
    err: str
    status: int

    def json(self) -> Any:
        """Parse standard output as one JSON document."""
        return json.loads(self.out)

    def lines(self) -> list[str]:
        """Return the lines of standard output, sorted: partitions are read in no fixed order."""
        return sorted(self.out.splitlines())


Kbroker = Callable[..., CommandResult]


@pytest.fixture
def environment(bootstrap: str) -> dict[str, str]:
    """An environment with the address of the broker under test."""
    return {**os.environ, "KBROKER_BOOTSTRAP": bootstrap}


@pytest.fixture
def try_kbroker(
    environment: dict[str, str], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Iterator[Kbroker]:
    """Runs a command that may fail, in this process: starting an interpreter for each would take a minute."""
    monkeypatch.setenv("KBROKER_BOOTSTRAP", environment["KBROKER_BOOTSTRAP"])
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def run(*args: str, stdin: str = "") -> CommandResult:
        capfd.readouterr()
        with standard_input(stdin):
            status = main(args)
        out, err = capfd.readouterr()
        assert "Traceback" not in err
        return CommandResult(out, err, status)

    yield run
    for number, handler in handlers.items():
        signal.signal(number, handler)


@contextmanager
def standard_input(text: str) -> Iterator[None]:
    """Replace file descriptor 0 by a file with this text."""
    kept = os.dup(0)
    try:
        with tempfile.TemporaryFile() as file:
            file.write(text.encode())
            file.seek(0)
            os.dup2(file.fileno(), 0)
        yield
    finally:
        os.dup2(kept, 0)
        os.close(kept)


@pytest.fixture
def kbroker(try_kbroker: Kbroker) -> Kbroker:
    """Runs a command and asserts that it succeeds."""

    def run(*args: str, stdin: str = "") -> CommandResult:
        done = try_kbroker(*args, stdin=stdin)
        assert done.status == 0, done.err
        return done

    return run
