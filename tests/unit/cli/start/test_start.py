"""`kbroker start`: options and files to properties, and the way into the broker."""

import json
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path

import pytest

from kbroker import cli
from kbroker.cli.common.errors import CliError
from kbroker.cli.start.options import StartOptions, load_properties, parse_options
from kbroker.cli.start.start import print_ready, start
from kbroker.config import BrokerConfig


def properties(options: StartOptions) -> dict[str, str]:
    return {name: source.text for name, source in load_properties(options, {})[0].items()}


def test_plain_options_are_parsed_without_typer() -> None:
    args = ["--config", "a.toml", "--data-dir=d", "--listen", "h:1", "--advertise=h:2", "--set", "a=b=c"]
    expected = StartOptions("a.toml", "d", "h:1", "h:2", ["a=b=c"], "debug", "json", "h:3")
    assert parse_options([*args, "--log-level", "debug", "--log-format", "json", "--metrics=h:3"]) == expected
    assert parse_options([]) == StartOptions()
    assert parse_options(["--set", "a=1", "--set=b=2"]) == StartOptions(set=["a=1", "b=2"])


@pytest.mark.parametrize("args", [["--help"], ["--listen"], ["--bogus", "x"], ["extra"], ["-h"]])
def test_anything_else_is_left_to_typer(args: list[str]) -> None:
    assert parse_options(args) is None


def test_without_options_it_listens_on_this_machine_only() -> None:
    assert properties(StartOptions()) == {
        "listeners": "PLAINTEXT://127.0.0.1:9092",
        "log.dirs": "kbroker-data",
    }


def test_options_are_stronger_than_set_and_set_is_stronger_than_the_file(tmp_path: Path) -> None:
    file = tmp_path / "broker.toml"
    file.write_text('log.dirs = "from-file"\n"num.partitions" = 3\n[node]\nid = 7\n')
    given = properties(
        StartOptions(config=str(file), data_dir="from-option", set=["log.dirs=from-set", "num.partitions=5"])
    )
    assert given["log.dirs"] == "from-option"
    assert given["num.partitions"] == "5"
    assert given["node.id"] == "7"


def test_the_environment_is_stronger_than_the_file_and_weaker_than_options(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text("num.partitions=3\nnode.id=7\nlog.dirs=from-file\nlog.retention.ms=9\n")
    variables = {"KBROKER_NUM_PARTITIONS": "4", "KBROKER_NODE_ID": "8", "KBROKER_LOG_DIRS": "from-env"}
    given, sentences = load_properties(StartOptions(config=str(file), set=["node.id=9"], data_dir="d"), variables)
    assert sentences == []
    assert {name: tuple(one) for name, one in given.items()} == {
        "num.partitions": ("4", "KBROKER_NUM_PARTITIONS"),
        "node.id": ("9", "--set"),
        "log.dirs": ("d", "--data-dir"),
        "log.retention.ms": ("9", f"{file}:4"),
        "listeners": ("PLAINTEXT://127.0.0.1:9092", "default"),
    }


def test_a_refused_value_is_told_with_its_place(
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


def test_the_data_directory_replaces_kafkas_older_name_for_it() -> None:
    assert "log.dirs" not in properties(StartOptions(set=["log.dir=old"]))
    given = properties(StartOptions(set=["log.dir=old"], data_dir="new"))
    assert given["log.dirs"] == "new"
    assert "log.dir" not in given


def test_an_ipv6_address_keeps_its_brackets() -> None:
    assert properties(StartOptions(listen="[::1]:9092"))["listeners"] == "PLAINTEXT://[::1]:9092"


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(CliError, match=r"cannot read .*missing.toml: No such file"):
        properties(StartOptions(config=str(tmp_path / "missing.toml")))
    broken = tmp_path / "broken.toml"
    broken.write_text("= 5")
    with pytest.raises(CliError, match=r"broken.toml is not valid TOML: .*line 1"):
        properties(StartOptions(config=str(broken)))
    broken.write_bytes(b"\xff\xfe")
    with pytest.raises(CliError, match="is not valid TOML"):
        properties(StartOptions(config=str(broken)))


Run = Callable[..., int]


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Callable[[Run], None]:
    """Puts another `run` in the place of the broker's."""

    def replace(run: Run) -> None:
        module = types.ModuleType("kbroker.broker")
        module.run = run  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "kbroker.broker", module)

    return replace


def test_the_ready_line_is_all_there_is_on_standard_output(
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
def test_what_cannot_be_started_is_one_line(
    options: StartOptions, status: int, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert start(options) == status
    shown = capsys.readouterr()
    assert shown.out == ""
    assert reason in shown.err
    assert shown.err.count("\n") == 1


def test_a_failure_of_the_broker_is_one_line(broker: Callable[[Run], None], capsys: pytest.CaptureFixture[str]) -> None:
    def run(config: BrokerConfig, *, on_ready: Callable[[str], None]) -> int:
        raise OSError(98, "Address already in use")

    broker(run)
    assert start(StartOptions()) == 1
    assert capsys.readouterr().err == "kbroker: the broker cannot run: Address already in use\n"


def test_announce_flushes(capsys: pytest.CaptureFixture[str]) -> None:
    print_ready("h:1")
    assert capsys.readouterr().out == "kbroker ready: bootstrap h:1\n"


def test_a_start_imports_neither_typer_nor_rich_nor_a_client() -> None:
    program = (
        "import sys; from kbroker.cli import main; status = main(['start', '--listen', 'bad']);"
        "print(status, sorted({'typer', 'rich', 'kafka', 'argparse'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "2 []\n"


@pytest.mark.parametrize("form", ["text", "json"])
def test_the_log_has_the_form_that_is_asked_for(form: str, tmp_path: Path) -> None:
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
