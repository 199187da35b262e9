"""The `kbroker` command as a shell runs it."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

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
def fails(environment: dict[str, str]) -> Kbroker:
    """Runs a command to its end, whatever the end is."""

    def run(*args: str, stdin: str = "") -> Done:
        done = subprocess.run(
            [*COMMAND, *args], input=stdin, capture_output=True, text=True, env=environment, timeout=TIMEOUT_S
        )
        assert "Traceback" not in done.stderr
        return Done(done.stdout, done.stderr, done.returncode)

    return run


@pytest.fixture
def kbroker(fails: Kbroker) -> Kbroker:
    """Runs a command that must succeed."""

    def run(*args: str, stdin: str = "") -> Done:
        done = fails(*args, stdin=stdin)
        assert done.status == 0, done.err
        return done

    return run
