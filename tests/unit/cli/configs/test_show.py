"""`kbroker config show`: configs with their values and origins."""

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


def start_configs(options: StartOptions, **variables: str) -> dict[str, tuple[str | None, str]]:
    static, _ = load_properties(options, variables)
    return {value.name: (value.value, value.origin) for value in config.start_configs(static)}


def test_every_config_has_its_origin(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text("node.id=7\nlog.retention.hours = 5\nkbroker.zookeeper.digest=secret\nnum.partitions=3\n")
    configs = start_configs(StartOptions(config=str(file), set=["num.partitions=+4"]), KBROKER_MAX_CONNECTIONS="9")
    assert set(BROKER_CONFIGS) == set(configs)
    assert configs["node.id"] == configs["broker.id"] == ("7", f"{file}:1")
    assert configs["log.retention.hours"] == ("5", f"{file}:2")
    assert configs["log.retention.ms"] == (None, "default")
    assert configs["kbroker.zookeeper.digest"] == ("[hidden]", f"{file}:3")
    assert configs["num.partitions"] == ("4", "--set")
    assert configs["max.connections"] == ("9", "KBROKER_MAX_CONNECTIONS")
    assert configs["listeners"] == ("PLAINTEXT://127.0.0.1:9092", "default")


def test_an_invalid_value_is_rejected_with_its_origin() -> None:
    with pytest.raises(CliError, match=r"Not a number of type INT \(from KBROKER_NUM_PARTITIONS\)$"):
        start_configs(StartOptions(), KBROKER_NUM_PARTITIONS="x")


def test_defaults_are_shown_with_all_only(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("KBROKER_")]:
        monkeypatch.delenv(name)
    assert cli.main(["config", "show", "--set", "num.partitions=2"]) == 0
    assert capsys.readouterr().out.split() == ["CONFIG", "VALUE", "FROM", "num.partitions", "2", "--set"]
    assert cli.main(["config", "show", "--all", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert len(listed) == len(BROKER_CONFIGS)
    assert {config["source"] for config in listed} == {"default"}


def described(name: str, value: str | None, source: str) -> dict[str, Any]:
    return {"name": name, "value": value, "source": source, "sensitive": value is None}


def test_configs_of_a_running_broker_have_origins(monkeypatch: pytest.MonkeyPatch) -> None:
    import kbroker.cli.configs.requests as requests
    import kbroker.client.admin as client_admin
    from protocol.messages.k60_describe_cluster import DescribeClusterBroker, DescribeClusterResponse

    configs = [
        described("num.partitions", "2", "STATIC_BROKER_CONFIG"),
        described("log.segment.bytes", "2000000", "STATIC_BROKER_CONFIG"),
        described("max.connections", "5", "DYNAMIC_BROKER_CONFIG"),
        described("log.retention.ms", "9", "DYNAMIC_DEFAULT_BROKER_CONFIG"),
        described("kbroker.zookeeper.digest", None, "STATIC_BROKER_CONFIG"),
        described("num.io.threads", "8", "DEFAULT_CONFIG"),
    ]

    @contextmanager
    def admin(bootstrap: str) -> Iterator[Any]:
        yield None

    def describe(client: Any, resources: list[requests.Resource]) -> Any:
        assert resources == [requests.Resource("broker", "4")]
        return {resources[0]: configs}

    monkeypatch.setattr(config, "admin_client", admin)
    monkeypatch.setattr(requests, "describe_configs", describe)
    cluster = DescribeClusterResponse(brokers=[DescribeClusterBroker(broker_id=4)])
    monkeypatch.setattr(client_admin, "describe_cluster", lambda client: cluster)
    static, _ = load_properties(
        StartOptions(set=["num.partitions= 2", "log.segment.bytes=3000000", "kbroker.zookeeper.digest=x"]), {}
    )
    assert [(value.name, value.value, value.origin) for value in config.running_configs("h:1", static)] == [
        ("num.partitions", "2", "--set"),
        # The broker was started with another value than these options have.
        ("log.segment.bytes", "2000000", "the broker's start"),
        ("max.connections", "5", "altered, this broker"),
        ("log.retention.ms", "9", "altered, all brokers"),
        ("kbroker.zookeeper.digest", "[hidden]", "--set"),
        ("num.io.threads", "8", "default"),
    ]
