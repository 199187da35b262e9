"""`kbroker start`: its options, and what it prints."""

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
from kbroker.config import BrokerConfig, ConfigError


def properties(options: StartOptions) -> dict[str, str]:
    return {name: source.text for name, source in load_properties(options, {})[0].items()}


def test_options_are_parsed_without_typer() -> None:
    args = ["--config", "a.toml", "--data-dir=d", "--listen", "h:1", "--advertise=h:2", "--set", "a=b=c"]
    expected = StartOptions("a.toml", "d", ["h:1"], ["h:2"], ["a=b=c"], "debug", "json", "h:3")
    assert parse_options([*args, "--log-level", "debug", "--log-format", "json", "--metrics=h:3"]) == expected
    assert parse_options([]) == StartOptions()
    assert parse_options(["--set", "a=1", "--set=b=2"]) == StartOptions(set=["a=1", "b=2"])
    assert parse_options(["--listen", ":1", "--listen=HOST://:2"]) == StartOptions(listen=[":1", "HOST://:2"])


@pytest.mark.parametrize("args", [["--help"], ["--listen"], ["--bogus", "x"], ["extra"], ["-h"]])
def test_typer_handles_help_and_usage_errors(args: list[str]) -> None:
    assert parse_options(args) is None


def test_several_listeners_have_names_and_no_security_protocol() -> None:
    options = StartOptions(listen=["0.0.0.0:9092", "host://:19092"], advertise=["b:9092", "host://[::1]:19092"])
    config = BrokerConfig.load(properties(options))
    assert [str(endpoint) for endpoint in config.listeners] == ["PLAINTEXT://0.0.0.0:9092", "HOST://:19092"]
    assert [str(endpoint) for endpoint in config.advertised_listeners] == ["PLAINTEXT://b:9092", "HOST://[::1]:19092"]
    assert {endpoint.security_protocol for endpoint in config.listeners} == {"PLAINTEXT"}
    options.set = ["listener.security.protocol.map=PLAINTEXT:PLAINTEXT,HOST:SSL"]
    with pytest.raises(
        ConfigError,
        match=r"HOST://:19092 .* SSL, which needs a certificate: set listener\.name\.host\.ssl\.keystore\.location",
    ):
        BrokerConfig.load(properties(options))
    with pytest.raises(ConfigError, match=r"inter\.broker\.listener\.name must be a listener name"):
        BrokerConfig.load(properties(StartOptions(listen=["A://h:1", "B://h:2"])))


def test_without_options_the_broker_listens_on_loopback_only() -> None:
    assert properties(StartOptions()) == {"listeners": "PLAINTEXT://127.0.0.1:9092", "log.dirs": "kbroker-data"}


def test_options_override_set_which_overrides_the_file(tmp_path: Path) -> None:
    file = tmp_path / "broker.toml"
    file.write_text('log.dirs = "from-file"\n"num.partitions" = 3\n[node]\nid = 7\n')
    loaded = properties(
        StartOptions(config=str(file), data_dir="from-option", set=["log.dirs=from-set", "num.partitions=5"])
    )
    assert loaded["log.dirs"] == "from-option"
    assert loaded["num.partitions"] == "5"
    assert loaded["node.id"] == "7"


def test_the_environment_overrides_the_file_and_options_override_it(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text("num.partitions=3\nnode.id=7\nlog.dirs=from-file\nlog.retention.ms=9\n")
    variables = {"KBROKER_NUM_PARTITIONS": "4", "KBROKER_NODE_ID": "8", "KBROKER_LOG_DIRS": "from-env"}
    loaded, warnings = load_properties(StartOptions(config=str(file), set=["node.id=9"], data_dir="d"), variables)
    assert warnings == []
    assert {name: tuple(source) for name, source in loaded.items()} == {
        "num.partitions": ("4", "KBROKER_NUM_PARTITIONS"),
        "node.id": ("9", "--set"),
        "log.dirs": ("d", "--data-dir"),
        "log.retention.ms": ("9", f"{file}:4"),
        "listeners": ("PLAINTEXT://127.0.0.1:9092", "default"),
    }


def test_data_dir_overrides_log_dir() -> None:
    assert "log.dirs" not in properties(StartOptions(set=["log.dir=old"]))
    loaded = properties(StartOptions(set=["log.dir=old"], data_dir="new"))
    assert loaded["log.dirs"] == "new"
    assert "log.dir" not in loaded


def test_an_ipv6_address_keeps_its_brackets() -> None:
    assert properties(StartOptions(listen=["[::1]:9092"]))["listeners"] == "PLAINTEXT://[::1]:9092"


def test_an_unreadable_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(CliError, match=r"cannot read .*missing.toml: No such file"):
        properties(StartOptions(config=str(tmp_path / "missing.toml")))
    broken = tmp_path / "broken.toml"
    broken.write_text("= 5")
    with pytest.raises(CliError, match=r"broken.toml is not valid TOML: .*line 1"):
        properties(StartOptions(config=str(broken)))
    broken.write_bytes(b"\xff\xfe")
    with pytest.raises(CliError, match="is not valid TOML"):
        properties(StartOptions(config=str(broken)))


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
    file.write_text("sasl.login.class=c.D\nprincipal.builder.class=a.B\n")
    data = ("--data-dir", str(tmp_path / "data"), "--listen", "127.0.0.1:0")
    command = [sys.executable, "-m", "kbroker", "start", "--config", str(file), *data, *arguments]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert result.returncode == 1
    assert result.stdout == ""
    assert result.stderr.startswith("kbroker: cannot set sasl.login.class to c.D, principal.builder.class to a.B: ")
    assert result.stderr.count("\n") == 1
    assert not (tmp_path / "data").exists()


Run = Callable[..., int]


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Callable[[Run], None]:
    """Return a function that replaces the `run` of the broker."""

    def replace(run: Run) -> None:
        module = types.ModuleType("kbroker.cli.start.run")
        module.run = run  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "kbroker.cli.start.run", module)

    return replace


def test_the_ready_line_is_the_only_standard_output(
    broker: Callable[[Run], None], capfd: pytest.CaptureFixture[str]
) -> None:
    def run(config: BrokerConfig, *, on_ready: Callable[[str], None], first_users: object) -> int:
        assert config.listeners[0].port == 19099
        on_ready("127.0.0.1:19099")
        return 0

    broker(run)
    assert cli.main(["start", "--listen", "127.0.0.1:19099"]) == 0
    assert capfd.readouterr().out == "kbroker ready: bootstrap 127.0.0.1:19099\n"


@pytest.mark.parametrize(
    ("options", "status", "reason"),
    [
        (StartOptions(listen=["0.0.0.0:9092"]), 1, "--advertise HOST:PORT"),
        (StartOptions(listen=["0.0.0.0:9092"], advertise=["[::]:9092"]), 1, "wildcard"),
        (StartOptions(listen=["nowhere"]), 2, "--listen must be HOST:PORT"),
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
    def run(config: BrokerConfig, *, on_ready: Callable[[str], None], first_users: object) -> int:
        raise OSError(98, "Address already in use")

    broker(run)
    assert start(StartOptions()) == 1
    assert (
        capsys.readouterr().err == "kbroker: the broker cannot run: Address already in use (see --listen HOST:PORT)\n"
    )


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
        "import sys; from kbroker import cli; from kbroker.cli.start import run;"
        "from kbroker.runtime.event_log import EventLogger;"
        "run.run = lambda config, on_ready, first_users: EventLogger('kbroker').warning('it runs', port=1) or 0;"
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
