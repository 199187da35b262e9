"""The configs of each broker of `kbroker start --brokers N`."""

import os
from pathlib import Path
from typing import Any

import pytest

from kbroker.cli.common.errors import CliError
from kbroker.cli.start.local_cluster import broker_settings, check_directory, properties_text
from kbroker.cli.start.options import StartOptions, check_single, load_properties
from kbroker.config.sources.files import parse_properties_file


def settings(brokers: int, *assignments: str, **options: Any) -> list[dict[str, str]]:
    properties, _ = load_properties(StartOptions(set=list(assignments), **options), {})
    connect = [f"127.0.0.1:{2181 + index}" for index in range(brokers)]
    return broker_settings(properties, brokers, "/data", connect, "kbroker:secret")


def test_brokers_have_their_own_ids_directories_and_consecutive_ports() -> None:
    brokers = settings(3, listen=["0.0.0.0:9092"], advertise=["host.example:9092"], metrics="127.0.0.1:9400")
    assert [broker["node.id"] for broker in brokers] == ["1", "2", "3"]
    assert [broker["log.dirs"] for broker in brokers] == ["/data/broker-1", "/data/broker-2", "/data/broker-3"]
    assert brokers[2]["listeners"] == "PLAINTEXT://0.0.0.0:9094"
    assert brokers[2]["advertised.listeners"] == "PLAINTEXT://host.example:9094"
    assert brokers[2]["kbroker.metrics.listener"] == "127.0.0.1:9402"
    assert [broker["zookeeper.connect"] for broker in brokers] == [f"127.0.0.1:{port}" for port in (2181, 2182, 2183)]
    assert [broker["listeners"] for broker in settings(2, listen=["127.0.0.1:0"])] == ["PLAINTEXT://127.0.0.1:0"] * 2


@pytest.mark.parametrize(("brokers", "factor", "min_isr"), [(1, "1", "1"), (2, "2", "1"), (3, "3", "2"), (5, "3", "2")])
def test_topics_are_replicated_as_far_as_there_are_brokers(brokers: int, factor: str, min_isr: str) -> None:
    first = settings(brokers)[0]
    names = ("default.replication.factor", "offsets.topic.replication.factor")
    assert {first[name] for name in (*names, "transaction.state.log.replication.factor")} == {factor}
    assert first["transaction.state.log.min.isr"] == min_isr


def test_brokers_wait_for_a_parent_that_opens_its_coordination_service_slowly() -> None:
    first = settings(2, "zookeeper.session.timeout.ms=2000")[0]
    assert int(first["zookeeper.connection.timeout.ms"]) == 30_000
    assert settings(2, "zookeeper.connection.timeout.ms=7")[0]["zookeeper.connection.timeout.ms"] == "7"


def test_configs_of_the_command_line_take_precedence_over_the_defaults() -> None:
    first = settings(3, "default.replication.factor=1", "num.partitions=6")[0]
    assert (first["default.replication.factor"], first["num.partitions"]) == ("1", "6")


@pytest.mark.parametrize(
    "name", ["node.id", "broker.id", "zookeeper.connect", "zookeeper.set.acl", "kbroker.inter.broker.listener"]
)
def test_configs_that_differ_between_the_brokers_are_refused(name: str) -> None:
    with pytest.raises(CliError, match=f"{name} cannot be set with --brokers"):
        settings(3, f"{name}=1")


def test_the_ports_of_each_listener_count_up() -> None:
    listen, advertise = ["127.0.0.1:9092", "HOST://:19092"], ["127.0.0.1:9092", "HOST://h:19092"]
    third = settings(3, listen=listen, advertise=advertise)[2]
    assert third["listeners"] == "PLAINTEXT://127.0.0.1:9094,HOST://:19094"
    assert third["advertised.listeners"] == "PLAINTEXT://127.0.0.1:9094,HOST://h:19094"
    close = ["127.0.0.1:9092", "HOST://127.0.0.1:9094"]
    assert len(settings(2, listen=close)) == 2
    with pytest.raises(CliError, match="those of two listeners must be 3 apart"):
        settings(3, listen=close)


def test_ports_end_at_the_highest_one() -> None:
    assert len(settings(2, listen=["127.0.0.1:65534"])) == 2
    with pytest.raises(CliError, match=r"no port for broker 3: 65534 \+ 2 is above 65535"):
        settings(3, listen=["127.0.0.1:65534"])


def test_the_file_of_a_broker_has_the_same_configs(tmp_path: Path) -> None:
    configs = {"node.id": "2", "log.dirs": "/data/with \\ backslash", "x": "="}
    parsed = parse_properties_file("file", properties_text(configs).encode())
    assert {name: config.text for name, config in parsed.items()} == configs


def test_a_directory_of_another_kind_is_refused(tmp_path: Path) -> None:
    os.makedirs(tmp_path / "many" / "broker-1")
    os.makedirs(tmp_path / "many" / "broker-2")
    check_directory(str(tmp_path / "many"), 2)
    check_directory(str(tmp_path / "new"), 2)
    with pytest.raises(CliError, match="data of more than one broker"):
        check_directory(str(tmp_path / "many"), 1)
    # A directory in between is lost.
    os.makedirs(tmp_path / "many" / "broker-5")
    with pytest.raises(CliError, match="data of more than 2 brokers"):
        check_directory(str(tmp_path / "many"), 2)
    with pytest.raises(CliError, match="data of several brokers: start them with --brokers"):
        check_single(str(tmp_path / "many"))
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "meta.properties").touch()
    check_single(str(tmp_path / "one"))
    with pytest.raises(CliError, match="data of a single broker: start it without --brokers"):
        check_directory(str(tmp_path / "one"), 1)


def test_a_partition_named_like_a_brokers_directory_is_none(tmp_path: Path) -> None:
    """Partition 1 of the topic `broker` of a single broker."""
    (tmp_path / "meta.properties").touch()
    (tmp_path / "broker-1").mkdir()
    (tmp_path / "broker-1" / "partition.metadata").touch()
    check_single(str(tmp_path))
    (tmp_path / "meta.properties").unlink()
    check_single(str(tmp_path))


def test_brokers_without_the_metadata_of_their_topics_are_refused(tmp_path: Path) -> None:
    (tmp_path / "broker-1").mkdir()
    check_directory(str(tmp_path), 2)
    (tmp_path / "broker-1" / "meta.properties").touch()
    with pytest.raises(CliError, match=f"not the metadata of their topics: restore {tmp_path}/coordination"):
        check_directory(str(tmp_path), 2)
    (tmp_path / "coordination").mkdir()
    check_directory(str(tmp_path), 2)
