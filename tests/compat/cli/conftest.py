"""The `kbroker` command as a shell runs it."""

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

TIMEOUT_S = 60

COMMAND = [sys.executable, "-m", "kbroker"]


@dataclass(frozen=True)
class Done:
    """What a command printed, and its exit status."""

    out: str
    err: str
    status: int

    def json(self) -> Any:
        """Standard output as one JSON document."""
        return json.loads(self.out)

    def lines(self) -> list[str]:
        """Standard output's lines, sorted: partitions are read in no fixed order."""
        return sorted(self.out.splitlines())


Kbroker = Callable[..., Done]


@pytest.fixture
def environment(bootstrap: str) -> dict[str, str]:
    """Names the broker under test, so that the commands need no --bootstrap."""
    return {**os.environ, "KBROKER_BOOTSTRAP": bootstrap}


@pytest.fixture
def fails(
    environment: dict[str, str], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Iterator[Kbroker]:
    """Runs a command to its end, whatever the end is.

    In this process, since an interpreter for each of them would take a minute in all.
    """
    monkeypatch.setenv("KBROKER_BOOTSTRAP", environment["KBROKER_BOOTSTRAP"])
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def run(*args: str, stdin: str = "") -> Done:
        capfd.readouterr()
        with standard_input(stdin):
            status = main(args)
        out, err = capfd.readouterr()
        assert "Traceback" not in err
        return Done(out, err, status)

    yield run
    for number, handler in handlers.items():
        signal.signal(number, handler)


@contextmanager
def standard_input(text: str) -> Iterator[None]:
    """File descriptor 0 reads this text."""
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
def kbroker(fails: Kbroker) -> Kbroker:
    """Runs a command that must succeed."""

    def run(*args: str, stdin: str = "") -> Done:
        done = fails(*args, stdin=stdin)
        assert done.status == 0, done.err
        return done

    return run
