"""`kbroker config show`: every config with its value and where that comes from."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kbroker import cli
from kbroker.cli.common.errors import CliError
from kbroker.cli.configs import show as config
from kbroker.cli.start.options import StartOptions, load_properties
from kbroker.config.definitions.broker import BROKER_CONFIGS


def shown(options: StartOptions, **variables: str) -> dict[str, tuple[str | None, str]]:
    given, _ = load_properties(options, variables)
    return {one.name: (one.value, one.origin) for one in config.start_configs(given)}


def test_every_config_is_there_with_its_origin(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text("node.id=7\nlog.retention.hours = 5\nssl.key.password=secret\nnum.partitions=3\n")
    found = shown(StartOptions(config=str(file), set=["num.partitions=+4"]), KBROKER_MAX_CONNECTIONS="9")
    assert set(BROKER_CONFIGS) == set(found)
    assert found["node.id"] == found["broker.id"] == ("7", f"{file}:1")
    assert found["log.retention.hours"] == ("5", f"{file}:2")
    assert found["log.retention.ms"] == (None, "default")
    assert found["ssl.key.password"] == ("[hidden]", f"{file}:3")
    assert found["num.partitions"] == ("4", "--set")
    assert found["max.connections"] == ("9", "KBROKER_MAX_CONNECTIONS")
    assert found["listeners"] == ("PLAINTEXT://127.0.0.1:9092", "default")


def test_what_would_not_start_is_told_with_its_place() -> None:
    with pytest.raises(CliError, match=r"Not a number of type INT \(from KBROKER_NUM_PARTITIONS\)$"):
        shown(StartOptions(), KBROKER_NUM_PARTITIONS="x")


def test_defaults_are_left_out_unless_asked_for(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith("KBROKER_")]:
        monkeypatch.delenv(name)
    assert cli.main(["config", "show", "--set", "num.partitions=2"]) == 0
    assert capsys.readouterr().out.split() == ["CONFIG", "VALUE", "FROM", "num.partitions", "2", "--set"]
    assert cli.main(["config", "show", "--all", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert len(listed) == len(BROKER_CONFIGS)
    assert {one["from"] for one in listed} == {"default"}


def described(name: str, value: str | None, source: str) -> dict[str, Any]:
    return {"name": name, "value": value, "source": source, "sensitive": value is None}


def test_a_running_broker_tells_what_was_altered(monkeypatch: pytest.MonkeyPatch) -> None:
    import kbroker.cli.configs.requests as requests

    configs = [
        described("num.partitions", "2", "STATIC_BROKER_CONFIG"),
        described("log.segment.bytes", "2000000", "STATIC_BROKER_CONFIG"),
        described("max.connections", "5", "DYNAMIC_BROKER_CONFIG"),
        described("log.retention.ms", "9", "DYNAMIC_DEFAULT_BROKER_CONFIG"),
        described("ssl.key.password", None, "STATIC_BROKER_CONFIG"),
        described("num.io.threads", "8", "DEFAULT_CONFIG"),
    ]

    @contextmanager
    def admin(bootstrap: str) -> Iterator[Any]:
        class Client:
            def describe_cluster(self) -> Any:
                return {"brokers": [{"broker_id": 4}]}

        yield Client()

    def describe(client: Any, resources: list[requests.Resource]) -> Any:
        assert resources == [requests.Resource("broker", "4")]
        return {resources[0]: configs}

    monkeypatch.setattr(config, "admin_client", admin)
    monkeypatch.setattr(requests, "describe_configs", describe)
    given, _ = load_properties(
        StartOptions(set=["num.partitions= 2", "log.segment.bytes=3000000", "ssl.key.password=x"]), {}
    )
    assert [(one.name, one.value, one.origin) for one in config.running_configs("h:1", given)] == [
        ("num.partitions", "2", "--set"),
        # it was started with another value than this one
        ("log.segment.bytes", "2000000", "the broker's start"),
        ("max.connections", "5", "altered, this broker"),
        ("log.retention.ms", "9", "altered, all brokers"),
        ("ssl.key.password", "[hidden]", "--set"),
        ("num.io.threads", "8", "default"),
    ]
