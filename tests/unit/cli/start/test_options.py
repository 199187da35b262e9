"""The options of `kbroker start`, and the properties that result from them."""

from pathlib import Path

import pytest

from kbroker.cli.common.errors import CliError
from kbroker.cli.start.options import StartOptions, load_properties, parse_options


def properties(options: StartOptions) -> dict[str, str]:
    return {name: source.text for name, source in load_properties(options, {})[0].items()}


def test_options_are_parsed_without_typer() -> None:
    args = ["--config", "a.toml", "--data-dir=d", "--listen", "h:1", "--advertise=h:2", "--set", "a=b=c"]
    expected = StartOptions("a.toml", "d", "h:1", "h:2", ["a=b=c"], "debug", "json", "h:3")
    assert parse_options([*args, "--log-level", "debug", "--log-format", "json", "--metrics=h:3"]) == expected
    assert parse_options([]) == StartOptions()
    assert parse_options(["--set", "a=1", "--set=b=2"]) == StartOptions(set=["a=1", "b=2"])


@pytest.mark.parametrize("args", [["--help"], ["--listen"], ["--bogus", "x"], ["extra"], ["-h"]])
def test_typer_handles_help_and_usage_errors(args: list[str]) -> None:
    assert parse_options(args) is None


def test_without_options_the_broker_listens_on_loopback_only() -> None:
    assert properties(StartOptions()) == {
        "listeners": "PLAINTEXT://127.0.0.1:9092",
        "log.dirs": "kbroker-data",
    }


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
    assert properties(StartOptions(listen="[::1]:9092"))["listeners"] == "PLAINTEXT://[::1]:9092"


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
