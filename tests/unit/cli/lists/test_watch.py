"""--watch, and notes about brokers that do not respond."""

import io
import json
import socket
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from kbroker.cli.common import output
from kbroker.cli.common.errors import CliError
from kbroker.client import retries
from tests.unit.cli.lists.conftest import Run


@pytest.fixture
def sleeps(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses between outputs, which take no time; the third one is Ctrl-C."""
    pauses: list[float] = []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(output, "sleep", sleep)
    return pauses


def test_a_pipe_gets_one_block_after_another(filled: Run, sleeps: list[float]) -> None:
    once = filled("groups list").out
    watched = filled("groups list --watch")
    assert (watched.status, watched.out) == (130, "\n".join([once] * 3))
    assert sleeps == [2, 2, 2]


def test_json_is_one_document_a_line(filled: Run, sleeps: list[float]) -> None:
    once = filled("topics list --json").json
    watched = filled("topics list --json --watch 0.5")
    assert [json.loads(line) for line in watched.out.splitlines()] == [once] * 3
    assert sleeps == [0.5, 0.5, 0.5]


@pytest.mark.parametrize("args", ["--watch --internal", "--watch=2 --internal", "--internal --watch 2"])
def test_the_number_is_optional(args: str, filled: Run, sleeps: list[float]) -> None:
    assert filled(f"topics list {args}").status == 130
    assert sleeps == [2, 2, 2]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def watch(show: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    """Return what is watched on a terminal writes to standard output and standard error."""
    out, err = Terminal(), Terminal()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    with pytest.raises(KeyboardInterrupt):
        output.watchable(show)(watch=1.0, no_pager=False, as_json=False)
    return out.getvalue(), err.getvalue()


def test_a_terminal_is_redrawn_with_notes(monkeypatch: pytest.MonkeyPatch, sleeps: list[float]) -> None:
    numbers = iter(range(3))

    def show(as_json: bool) -> None:
        print("table", next(numbers))
        output.print_note("a note")

    out, err = watch(show, monkeypatch)
    assert out == "".join(f"\x1b[H\x1b[Jtable {number}\na note\n" for number in range(3))
    assert err == "a note\n" * 3


def test_only_the_first_error_ends_it(monkeypatch: pytest.MonkeyPatch, sleeps: list[float]) -> None:
    outcomes: list[Any] = ["first", CliError("no broker responds"), "third"]

    def show(as_json: bool) -> None:
        outcome = outcomes.pop(0)
        if isinstance(outcome, CliError):
            raise outcome
        print(outcome)

    out, err = watch(show, monkeypatch)
    assert "first" in out
    assert "third" in out
    assert "no broker responds" in err
    with pytest.raises(CliError, match="at once"):
        output.watchable(lambda as_json: (_ for _ in ()).throw(CliError("at once")))(
            watch=1.0, no_pager=False, as_json=False
        )


def test_a_closed_pipe_ends_it(bootstrap: str) -> None:
    command = [sys.executable, "-m", "kbroker", "topics", "list", "--watch", "0.1", "-b", bootstrap]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().startswith("TOPIC")
        process.stdout.close()
        assert (process.stderr.read(), process.wait(60)) == ("", 1)


def test_a_broker_that_does_not_respond_is_named(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retries, "SILENT_FOR_S", 0.02)
    monkeypatch.setattr("kbroker.client.connection.NEGOTIATION_TIMEOUT_S", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        for command in ("topics list", "groups describe g", "cluster info", "transactions list", "users list"):
            outcome = run(f"{command} -b {address}")
            note, error = outcome.err.splitlines()
            assert note == f"waiting: no response from {address}"
            assert "no response to the first request" in error
            assert outcome.status == 1
