"""The command tree: usage, errors on one line, exit statuses."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kbroker.cli import main
from kbroker.cli.app import run


@pytest.fixture
def unused_address() -> Iterator[str]:
    """An address that refuses connections: bound, so that no other process can listen there."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{bound.getsockname()[1]}"


@pytest.mark.parametrize(
    "command",
    [
        ["brokers", "list"],
        ["brokers", "balance"],
        ["brokers", "drain", "1", "--dry-run"],
        ["brokers", "replace", "1", "2"],
        ["brokers", "plan", "--watch"],
        ["topics", "list"],
        ["topics", "describe", "t"],
        ["topics", "create", "t"],
        ["topics", "alter", "t", "--set", "a=b"],
        ["topics", "alter", "t", "u", "--replication-factor", "3"],
        ["topics", "delete", "t"],
        ["topics", "delete-records", "t", "--all", "--yes"],
        ["produce", "t", "v"],
        ["consume", "t"],
        ["groups", "list"],
        ["groups", "describe", "g"],
        ["groups", "delete", "g"],
        ["groups", "reset-offsets", "g", "--topic", "t", "--to-earliest"],
        ["groups", "delete-offsets", "g", "--topic", "t"],
        ["configs", "get", "topic", "t"],
        ["configs", "set", "broker", "--default", "a=b"],
        ["configs", "unset", "group", "g", "--all"],
        ["configs", "list"],
        ["transactions", "list"],
        ["transactions", "describe", "id"],
        ["transactions", "producers", "t"],
        ["transactions", "find-hanging"],
        ["transactions", "abort", "t:0", "--start-offset", "0"],
        ["transactions", "terminate", "id"],
    ],
)
def test_a_refused_connection_is_one_line(
    command: list[str], unused_address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command, "--bootstrap", unused_address]) == 1
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err == (
        f"kbroker: cannot connect to {unused_address}: Connection refused (start a broker with: kbroker start)\n"
    )


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        (["bogus"], "No such command"),
        (["topics", "bogus"], "No such command"),
        (["topics", "list", "--bogus"], "No such option"),
        (["topics", "create"], "Missing argument"),
        (["topics", "create", "t", "--partitions", "0"], "--partitions"),
        (["topics", "create", "t", "--config", "x"], "NAME=VALUE"),
        (["topics", "alter", "t"], "nothing to alter"),
        (["topics", "alter", "t", "--replication-factor", "0"], "--replication-factor"),
        (["topics", "alter", "t", "--replication-factor", "3", "--set", "a=b"], "in a command of its own"),
        (["topics", "alter", "t", "--partitions", "3", "--dry-run"], "only with --replication-factor: --dry-run"),
        (["topics", "alter", "t", "--replication-factor", "3", "--throttle", "fast"], "expected a size"),
        (["brokers", "drain"], "Missing argument"),
        (["brokers", "drain", "one"], "ID"),
        (["brokers", "replace", "1"], "Missing argument"),
        (["brokers", "balance", "--throttle", "0"], "expected a rate"),
        (["brokers", "balance", "--concurrent", "0"], "--concurrent"),
        (["topics", "list", "--bootstrap", "nowhere:x"], "--bootstrap must be HOST:PORT"),
        (["topics", "list", "--bootstrap", ","], "--bootstrap is empty"),
        (["produce", "t", "v", "--json"], "--json"),
        (["produce", "t", "v", "--file", "f"], "not both"),
        (["produce", "t", "v", "--acks", "2"], "--acks"),
        (["produce", "t", "v", "--compression", "rar"], "--compression"),
        (["produce", "t", "v", "--header", "x"], "NAME=VALUE"),
        (["consume", "t", "--from", "sometime"], "expected earliest"),
        (["consume", "t", "--group", "g", "--from", "5"], "--group"),
        (["consume", "t", "--count", "0"], "--count"),
        (["groups", "reset-offsets", "g", "--topic", "t"], "choose one target"),
        (["groups", "reset-offsets", "g", "--all-topics", "--to-earliest", "--to-latest"], "choose one target"),
        (["groups", "reset-offsets", "g", "--to-earliest"], "choose topics"),
        (["groups", "reset-offsets", "g", "--to-earliest", "--topic", "t", "--all-topics"], "choose topics"),
        (["groups", "reset-offsets", "g", "--all-topics", "--to-earliest", "--execute", "--dry-run"], "excl"),
        (["groups", "reset-offsets", "--all-topics", "--to-earliest"], "choose groups"),
        (["groups", "reset-offsets", "g", "--all-groups", "--all-topics", "--to-latest"], "choose groups"),
        (["groups", "reset-offsets", "g", "--from-file", "f", "--all-topics"], "--from-file names the topics"),
        (["groups", "reset-offsets", "g", "--all-topics", "--to-latest", "--export", "--json"], "excl"),
        (["groups", "reset-offsets", "", "--all-topics", "--to-latest"], "choose groups"),
        (["groups", "reset-offsets", "g", "--topic", "t", "--to-offset", str(2**63)], "--to-offset"),
        (["groups", "reset-offsets", "g", "--topic", "t", "--to-datetime", str(2**63)], "too large"),
        (["groups", "list", "--state", "asleep"], "--state must be one of"),
        (["topics", "create", "t", "--partitions", str(2**31)], "--partitions"),
        (["topics", "create", "t", "--replication-factor", "32768"], "--replication-factor"),
        (["topics", "create", "\udcff"], "not UTF-8"),
        (["produce", "\udcff", "v"], "not UTF-8"),
        (["produce", "t", "v", "--partition", str(2**31)], "--partition"),
        (["consume", "t", "--from", "9" * 20], "too large"),
        (["consume", "t", "--from", "@" + "9" * 20], "too large"),
        (["configs", "set", "topic", "t", "retention.ms=\udcff"], "not UTF-8"),
        (["configs", "get", "queue", "q"], "expected topic, broker"),
        (["configs", "get", "topic"], "missing the name of the topic"),
        (["configs", "set", "topic", "t"], "nothing to set"),
        (["configs", "set", "topic", "t", "retention.ms"], "NAME=VALUE"),
        (["configs", "set", "topic", "t", "a=b", "--append", "a=c"], "a is changed twice"),
        (["configs", "unset", "topic", "t"], "name the configs to unset"),
        (["configs", "unset", "topic", "t", "a", "--all"], "name the configs to unset"),
        (["configs", "list", "loggers"], "loggers always have a level"),
        (["transactions", "list", "--state", "Running"], "--state must be one of Empty, Ongoing, "),
        (["transactions", "list", "--longer-than", "soon"], "expected a duration"),
        (["transactions", "abort", "t", "--start-offset", "1"], "expected TOPIC:PARTITION, not 't'"),
        (["transactions", "abort", "t:0,1", "--start-offset", "1"], "expected TOPIC:PARTITION"),
        (["transactions", "abort", "t:0"], "use --start-offset, or --producer-id"),
        (["transactions", "abort", "t:0", "--producer-id", "1", "--producer-epoch", "0"], "use --start-offset, or"),
        (["transactions", "abort", "t:0", "--start-offset", "1", "--producer-id", "1"], "use --start-offset, or"),
        (["transactions", "find-hanging", "--max-transaction-timeout", "15"], "expected a duration"),
        (["transactions", "describe"], "Missing argument"),
        (["start", "--bogus"], "No such option"),
    ],
)
def test_usage_errors_are_one_line_with_status_2(
    command: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(command) == 2
    output = capsys.readouterr()
    assert reason in output.err
    assert output.err.count("\n") == 1
    assert output.out == ""


@pytest.mark.parametrize("command", [["--help"], ["topics", "-h"], ["start", "--help"], ["consume", "--help"]])
def test_help_has_status_0(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(command) == 0
    output = capsys.readouterr()
    assert output.out.startswith("Usage: kbroker")
    assert output.err == ""


@pytest.mark.parametrize("words", [[], ["topics"], ["topics", "list"], ["start"]])
def test_help_is_a_command_too(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*words, "--help"]) == 0
    text = capsys.readouterr().out
    assert main(["help", *words]) == 0
    assert capsys.readouterr().out == text


@pytest.mark.parametrize("command", [[], ["topics"], ["groups"], ["configs"]])
def test_a_group_without_a_command_prints_its_help(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(command) == 2
    assert "Commands:" in capsys.readouterr().out


def test_help_of_start_has_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    main(["start", "--help"])
    output = capsys.readouterr().out
    for option in (
        "--config",
        "--data-dir",
        "--listen",
        "--advertise",
        "--set",
        "--log-level",
        "--log-format",
        "--metrics",
    ):
        assert option in output


def test_version(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A checkout has a commit. An installed package has none, even where somebody's repository has its directory."""
    installed = tmp_path / "venv" / "kbroker" / "__init__.py"
    monkeypatch.setattr("kbroker.__version__", "1.2.3")
    monkeypatch.setattr("kbroker.__file__", str(installed))

    def git(*args: str) -> str:
        identity = ("-c", "user.name=a", "-c", "user.email=a@b")
        return subprocess.run(
            ["git", *identity, "-C", str(tmp_path), *args], capture_output=True, check=True
        ).stdout.decode()

    def versions() -> set[str]:
        assert main(["--version"]) == main(["version"]) == 0
        return set(capsys.readouterr().out.splitlines())

    assert versions() == {"kbroker 1.2.3"}
    (tmp_path / "file").write_text("a")
    git("init", "-q")
    git("add", "file")
    git("commit", "-q", "-m", "first")
    git("tag", "-m", "a", "v9")
    assert versions() == {"kbroker 1.2.3"}
    monkeypatch.setattr("kbroker.__file__", str(tmp_path / "kbroker" / "__init__.py"))
    commit = git("rev-parse", "--short=9", "HEAD").strip()
    assert versions() == {f"kbroker 1.2.3 (commit {commit})"}
    (tmp_path / "file").write_text("b")
    assert versions() == {f"kbroker 1.2.3 (commit {commit}, dirty)"}
    monkeypatch.setenv("PATH", "/nowhere")
    assert versions() == {"kbroker 1.2.3"}


def test_a_missing_file_is_reported_before_a_connection_is_opened(
    capsys: pytest.CaptureFixture[str], unused_address: str
) -> None:
    assert main(["produce", "t", "--file", "/nowhere/file", "--bootstrap", unused_address]) == 1
    assert capsys.readouterr().err == "kbroker: cannot read /nowhere/file: No such file or directory\n"


def test_a_closed_pipe_is_not_an_error_message() -> None:
    program = (
        "import sys; from kbroker.cli import app\n"
        "@app.app.command('flood')\n"
        "def flood():\n"
        "    for i in range(100000): print(i)\n"
        "sys.exit(app.run(['flood']))"
    )
    writer = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert writer.stdout is not None
    assert writer.stdout.readline() == "0\n"
    writer.stdout.close()
    assert writer.stderr is not None
    assert writer.stderr.read() == ""
    assert writer.wait(60) == 1


@pytest.mark.parametrize("args", [["--version"], ["topics"], ["config", "show"]], ids=" ".join)
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_output_on_a_full_disk_is_one_error_message(args: list[str], unbuffered: str) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "kbroker", *args],
            stdout=full, stderr=subprocess.PIPE, text=True, env=os.environ | {"PYTHONUNBUFFERED": unbuffered},
        )  # fmt: skip
    assert (done.returncode, done.stderr) == (1, "kbroker: No space left on device\n")


def test_the_help_without_typer_is_that_of_typer(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0
    with_typer = capsys.readouterr().out
    assert main(["--help"]) == 0
    assert capsys.readouterr().out == with_typer
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "kbroker", "--help"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "kbroker: No space left on device\n")


def test_a_host_has_the_default_port(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["topics", "list", "--bootstrap-server", "127.0.0.1:1, nobody.invalid,[::1]:1"]) == 1
    error = capsys.readouterr().err
    assert "127.0.0.1:1: " in error
    assert "nobody.invalid:9092: " in error


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["completion", shell]) == 0
    assert "_KBROKER_COMPLETE=complete_" in capsys.readouterr().out
    assert run(["completion", "csh"]) == 2
    assert "SHELL must be one of" in capsys.readouterr().err
