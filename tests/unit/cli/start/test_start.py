"""`kbroker start`: errors, the ready line and the format of the log."""

import json
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path

import pytest

from kbroker import cli
from kbroker.cli.start.options import StartOptions
from kbroker.cli.start.start import print_ready, start
from kbroker.config import BrokerConfig


def test_an_invalid_value_is_rejected_with_its_origin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "server.properties"
    file.write_text("\nnum.partitions=many\n")
    assert start(StartOptions(config=str(file))) == 1
    assert capsys.readouterr().err.endswith(f"Not a number of type INT (from {file}:2)\n")
    monkeypatch.setenv("KBROKER_LOG_RETENTON_MS", "5")
    assert start(StartOptions()) == 1
    assert capsys.readouterr().err == (
        "kbroker: Unknown broker config name: log.retenton.ms (did you mean log.retention.ms?) "
        "(from KBROKER_LOG_RETENTON_MS)\n"
    )


@pytest.mark.parametrize("arguments", [(), ("--brokers", "2")], ids=["single", "cluster"])
def test_a_broker_that_would_be_open_does_not_start(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    """Its user relies on the protection."""
    file = tmp_path / "server.properties"
    file.write_text("ssl.client.auth=required\nauthorizer.class.name=a.B\n")
    data = ("--data-dir", str(tmp_path / "data"), "--listen", "127.0.0.1:0")
    command = [sys.executable, "-m", "kbroker", "start", "--config", str(file), *data, *arguments]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert result.returncode == 1
    assert result.stdout == ""
    assert result.stderr.startswith("kbroker: cannot set ssl.client.auth to required, authorizer.class.name to a.B: ")
    assert result.stderr.count("\n") == 1
    assert not (tmp_path / "data").exists()


Run = Callable[..., int]


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Callable[[Run], None]:
    """Return a function that replaces the `run` of the broker."""

    def replace(run: Run) -> None:
        module = types.ModuleType("kbroker.broker")
        module.run = run  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "kbroker.broker", module)

    return replace


def test_the_ready_line_is_the_only_standard_output(
    broker: Callable[[Run], None], capfd: pytest.CaptureFixture[str]
) -> None:
    def run(config: BrokerConfig, *, on_ready: Callable[[str], None]) -> int:
        assert config.listeners[0].port == 19099
        on_ready("127.0.0.1:19099")
        return 0

    broker(run)
    assert cli.main(["start", "--listen", "127.0.0.1:19099"]) == 0
    assert capfd.readouterr().out == "kbroker ready: bootstrap 127.0.0.1:19099\n"


@pytest.mark.parametrize(
    ("options", "status", "reason"),
    [
        (StartOptions(listen="0.0.0.0:9092"), 1, "--advertise HOST:PORT"),
        (StartOptions(listen="0.0.0.0:9092", advertise="[::]:9092"), 1, "wildcard"),
        (StartOptions(listen="nowhere"), 2, "--listen must be HOST:PORT"),
        (StartOptions(set=["x"]), 2, "NAME=VALUE"),
        (StartOptions(set=["num.partitions=many"]), 1, "num.partitions"),
        (StartOptions(log_level="loud"), 2, "--log-level"),
        (StartOptions(log_format="xml"), 1, "kbroker.log.format"),
        (StartOptions(metrics="9100"), 2, "--metrics must be HOST:PORT"),
        (StartOptions(set=["kbroker.metrics.listener=here"]), 1, "kbroker.metrics.listener"),
    ],
)
def test_a_configuration_error_is_one_line(
    options: StartOptions, status: int, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert start(options) == status
    output = capsys.readouterr()
    assert output.out == ""
    assert reason in output.err
    assert output.err.count("\n") == 1


def test_a_failure_of_the_broker_is_one_line(broker: Callable[[Run], None], capsys: pytest.CaptureFixture[str]) -> None:
    def run(config: BrokerConfig, *, on_ready: Callable[[str], None]) -> int:
        raise OSError(98, "Address already in use")

    broker(run)
    assert start(StartOptions()) == 1
    assert capsys.readouterr().err == "kbroker: the broker cannot run: Address already in use\n"


def test_the_ready_line_is_flushed(capsys: pytest.CaptureFixture[str]) -> None:
    print_ready("h:1")
    assert capsys.readouterr().out == "kbroker ready: bootstrap h:1\n"


def test_a_start_imports_neither_typer_nor_rich_nor_kafka_python() -> None:
    program = (
        "import sys; from kbroker.cli import main; status = main(['start', '--listen', 'bad']);"
        "print(status, sorted({'typer', 'rich', 'kafka', 'argparse'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "2 []\n"


@pytest.mark.parametrize("form", ["text", "json"])
def test_log_format(form: str, tmp_path: Path) -> None:
    program = (
        "import sys; from kbroker import broker, cli; from kbroker.runtime.event_log import EventLogger;"
        "broker.run = lambda config, on_ready: EventLogger('kbroker').warning('it runs', port=1) or 0;"
        "sys.exit(cli.main(['start', *sys.argv[1:]]))"
    )
    args = ["--log-format", form, "--metrics", "127.0.0.1:0", "--data-dir", str(tmp_path)]
    done = subprocess.run([sys.executable, "-c", program, *args], capture_output=True, text=True)
    assert done.returncode == 0
    (line,) = done.stderr.splitlines()
    if form == "json":
        assert {"level": "WARNING", "logger": "kbroker", "message": "it runs", "port": 1}.items() <= json.loads(
            line
        ).items()
    else:
        assert line.endswith(" WARNING kbroker: it runs port=1")
