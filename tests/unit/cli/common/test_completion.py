"""Shell completion: valid scripts, and no completions or errors without a broker."""

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator

import pytest

from kbroker.cli import main
from kbroker.cli.common.completion import rejoin_words

CHECKS = {"bash": ["bash", "-n"], "zsh": ["zsh", "-n"], "fish": ["fish", "--no-execute"]}


@pytest.mark.parametrize("shell", CHECKS)
def test_the_scripts_are_valid(shell: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    # --show-completion prints the script of the shell that it was started from.
    monkeypatch.setenv("_KBROKER_COMPLETE", f"source_{shell}")
    assert main([]) == 0
    script = capsys.readouterr().out
    assert f"_KBROKER_COMPLETE=complete_{shell}" in script
    if shutil.which(shell) is not None:
        done = subprocess.run(CHECKS[shell], input=script, capture_output=True, text=True, timeout=120)
        assert (done.returncode, done.stderr) == (0, "")


def complete(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str, bootstrap: str = "127.0.0.1:1"
) -> list[str]:
    """Return the completions of the last word."""
    monkeypatch.setenv("KBROKER_BOOTSTRAP", bootstrap)
    monkeypatch.setenv("_KBROKER_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "\n".join(("kbroker", *words)))
    monkeypatch.setenv("COMP_CWORD", str(len(words)))
    assert main([]) == 0
    output = capsys.readouterr()
    assert output.err == ""
    return output.out.split()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["gr"], ["groups"]),
        (["groups", "res"], ["reset-offsets"]),
        (["groups", "reset-offsets", "--to-d"], ["--to-datetime"]),
        (["topics", "create", "t", "--config", "min.comp"], ["min.compaction.lag.ms="]),
        (["topics", "alter", "t", "--unset", "min.comp"], ["min.compaction.lag.ms"]),
        (["configs", "get", "cl"], ["client-metrics"]),
        (["configs", "get", "topic", "t", "retention."], ["retention.bytes", "retention.ms"]),
        (["configs", "set", "topics", "t", "retention.b"], ["retention.bytes="]),
        (["configs", "get", "broker", "--default", "log.retention.ho"], ["log.retention.hours"]),
        (["configs", "get", "client-metrics", "m", "int"], ["interval.ms"]),
        (["topics", "describe", ""], []),
        (["groups", "describe", ""], []),
        (["configs", "get", "broker", ""], []),
        (["transactions", "f"], ["find-hanging"]),
        (["transactions", "describe", ""], []),
    ],
)
def test_completions_without_a_broker(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str], expected: list[str]
) -> None:
    assert complete(monkeypatch, capsys, *words) == expected


@pytest.fixture
def silent() -> Iterator[str]:
    """The address of a server that accepts connections and never responds."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def test_completion_does_not_wait_for_a_broker_that_does_not_respond(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], silent: str
) -> None:
    start = time.monotonic()
    assert complete(monkeypatch, capsys, "topics", "describe", "", bootstrap=silent) == []
    assert time.monotonic() - start < 25


@pytest.mark.parametrize(
    ("words", "cursor", "expected", "expected_cursor"),
    [
        (["kbroker", "topics", "li"], 2, ["kbroker", "topics", "li"], 2),
        (["kbroker", "-b", "host", ":", "9092", "topics", "li"], 6, ["kbroker", "-b", "host:9092", "topics", "li"], 4),
        (["kbroker", "--set", "a", "=", "b"], 4, ["kbroker", "--set", "a=b"], 2),
        (["kbroker", "-b", "host", ":", "9", "x", ""], 6, ["kbroker", "-b", "host:9", "x", ""], 4),
    ],
)
def test_words_that_bash_has_split_are_rejoined(
    words: list[str], cursor: int, expected: list[str], expected_cursor: int
) -> None:
    environ = {"_KBROKER_COMPLETE": "complete_bash", "COMP_WORDS": "\n".join(words), "COMP_CWORD": str(cursor)}
    rejoin_words(environ)
    assert environ["COMP_WORDS"].split("\n") == expected
    assert environ["COMP_CWORD"] == str(expected_cursor)
    untouched: dict[str, str] = {}
    rejoin_words(untouched)
    assert untouched == {}
