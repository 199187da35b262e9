"""`kbroker topics` against a broker."""

from typing import Any

import pytest

from tests.compat.cli.conftest import Kbroker
from tests.compat.support import BrokerProcess, need_own_broker

pytestmark = pytest.mark.compat


def _configs(described: dict[str, Any]) -> dict[str, str]:
    return {config["name"]: config["value"] for config in described["configs"]}


def test_a_topic_is_created_listed_described_and_deleted(kbroker: Kbroker, try_kbroker: Kbroker, name: str) -> None:
    created = kbroker("topics", "create", name, "--partitions", "3", "--config", "retention.ms=86400000")
    assert created.out == f"{name}: created with 3 partitions\n"
    listed = {topic["topic"]: topic for topic in kbroker("topics", "list", "--json").json()}
    assert listed[name]["partition_count"] == 3
    assert listed[name]["replication_factor"] == 1
    assert name in kbroker("topics", "list").out

    [described] = kbroker("topics", "describe", name, "--json").json()
    assert described["configs"] == [{"name": "retention.ms", "value": "86400000", "source": "DYNAMIC_TOPIC_CONFIG"}]
    assert [p["partition"] for p in described["partitions"]] == [0, 1, 2]
    assert {(p["earliest_offset"], p["latest_offset"]) for p in described["partitions"]} == {(0, 0)}
    output = kbroker("topics", "describe", name).out.splitlines()
    assert "retention.ms=86400000" in output[0]
    assert len(output) == 5

    assert kbroker("topics", "delete", name).out == f"{name}: deleted\n"
    missing = try_kbroker("topics", "describe", name)
    assert (missing.status, missing.err) == (1, f"kbroker: topic {name} does not exist\n")


def test_if_not_exists_and_if_exists(kbroker: Kbroker, try_kbroker: Kbroker, name: str) -> None:
    kbroker("topics", "create", name)
    repeated = try_kbroker("topics", "create", name)
    assert repeated.status == 1
    assert "already exists (TOPIC_ALREADY_EXISTS)" in repeated.err
    kbroker("topics", "create", name, "--if-not-exists")
    kbroker("topics", "delete", name)
    assert try_kbroker("topics", "delete", name).status == 1
    kbroker("topics", "delete", name, "--if-exists")


def test_valid_topics_are_created_when_others_are_rejected(try_kbroker: Kbroker, kbroker: Kbroker, name: str) -> None:
    done = try_kbroker("topics", "create", name, "no blanks please")
    assert done.status == 1
    assert done.out.startswith(f"{name}: created")
    assert "INVALID_TOPIC_EXCEPTION" in done.err
    assert done.err.count("\n") == 1
    kbroker("topics", "describe", name)


def test_validate_only_creates_nothing(kbroker: Kbroker, try_kbroker: Kbroker, name: str) -> None:
    kbroker("topics", "create", name, "--validate-only")
    assert try_kbroker("topics", "describe", name).status == 1
    result = try_kbroker("topics", "create", name, "--validate-only", "--config", "retention.ms=soon")
    assert "INVALID_CONFIG" in result.err


def test_partitions_are_added_and_configs_altered(kbroker: Kbroker, try_kbroker: Kbroker, name: str) -> None:
    kbroker("topics", "create", name, "--partitions", "1", "--config", "cleanup.policy=delete")
    kbroker("topics", "alter", name, "--partitions", "4", "--set", "segment.ms=3600000")
    kbroker("topics", "alter", name, "--append", "cleanup.policy=compact")
    [described] = kbroker("topics", "describe", name, "--json").json()
    assert len(described["partitions"]) == 4
    assert _configs(described) == {"cleanup.policy": "delete,compact", "segment.ms": "3600000"}

    kbroker("topics", "alter", name, "--unset", "segment.ms", "--subtract", "cleanup.policy=compact")
    [described] = kbroker("topics", "describe", name, "--json").json()
    assert _configs(described) == {"cleanup.policy": "delete"}

    for change, reason in (
        (["--partitions", "4"], "INVALID_PARTITIONS"),
        (["--set", "segment.ms=soon"], "INVALID_CONFIG"),
        (["--set", "no.such.config=1"], "INVALID_CONFIG"),
    ):
        result = try_kbroker("topics", "alter", name, *change)
        assert result.status == 1
        assert reason in result.err
        assert result.err.count("\n") == 1


def test_views_are_shown_with_their_sources(kbroker: Kbroker, name: str) -> None:
    need_own_broker()
    kbroker("topics", "create", name)
    kbroker("topics", "create", f"{name}.view", "--view-of", name, "--filter", "paid")
    listed = {topic["topic"]: topic.get("view_of") for topic in kbroker("topics", "list", "--json").json()}
    assert (listed[name], listed[f"{name}.view"]) == (None, name)
    lines = kbroker("topics", "list").out.splitlines()
    assert lines[0].split() == ["TOPIC", "PARTITIONS", "REPLICAS", "SIZE", "RECORDS", "LAST_WRITE", "VIEW_OF"]
    assert [f"{name}.view", "1", "1", "-", "0", "-", name] in [line.split() for line in lines]
    [described] = kbroker("topics", "describe", f"{name}.view", "--json").json()
    assert described["view_of"] == name
    assert f"view of {name}" in kbroker("topics", "describe", f"{name}.view").out.splitlines()[0]
    kbroker("topics", "delete", f"{name}.view", name)


def test_removing_partitions_is_not_a_refused_request(
    kbroker: Kbroker, try_kbroker: Kbroker, broker: BrokerProcess
) -> None:
    """The broker's log has no error of the command's own questions; a view's partitions are those of its source."""
    address = ("-b", broker.bootstrap)
    kbroker("topics", "create", "orders", "-p", "3", *address)
    kbroker("topics", "create", "paid", "--view-of", "orders", *address)
    assert "now has 2 partitions" in kbroker("topics", "alter", "orders", "-p", "2", *address).out
    assert "now has 4 partitions" in kbroker("topics", "alter", "orders", "-p", "4", *address).out
    kbroker("topics", "list", *address)
    kbroker("topics", "describe", "orders", "paid", *address)
    assert "request refused" not in broker.errors
    for partitions, reason in (("1", "remove partitions of"), ("9", "add partitions to")):
        refused = try_kbroker("topics", "alter", "paid", "-p", partitions, *address)
        assert (refused.status, f"'paid' is a view; {reason} its source" in refused.err) == (1, True)
    missing = try_kbroker("topics", "alter", "absent", "-p", "1", *address)
    assert (missing.status, "topic absent does not exist" in missing.err) == (1, True)


def test_records_are_deleted_up_to_an_offset_or_a_time(kbroker: Kbroker, name: str) -> None:
    kbroker("topics", "create", name, "--partitions", "1")
    lines = "".join(f'{{"value": "{number}", "timestamp": {number * 1000}}}\n' for number in range(5))
    kbroker("produce", name, "--json", stdin=lines)
    kbroker("topics", "delete-records", name, "--partition", "0", "--offset", "1", "--yes")
    assert kbroker("consume", name).out == "1\n2\n3\n4\n"
    done = kbroker("topics", "delete-records", name, "--until", "3000", "--yes")
    assert done.out == f"{name}: 2 records deleted\n"
    assert kbroker("consume", name).out == "3\n4\n"
    kbroker("topics", "delete-records", name, "--all", "--yes")
    assert kbroker("consume", name).out == ""
