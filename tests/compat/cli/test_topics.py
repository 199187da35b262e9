"""`kbroker topics` against a broker."""

import pytest

from tests.compat.cli.conftest import Kbroker

pytestmark = pytest.mark.compat


def test_a_topic_is_created_listed_described_and_deleted(kbroker: Kbroker, fails: Kbroker, name: str) -> None:
    created = kbroker("topics", "create", name, "--partitions", "3", "--config", "retention.ms=86400000")
    assert created.out == f"{name}: created with 3 partitions\n"
    listed = {topic["name"]: topic for topic in kbroker("topics", "list", "--json").json()}
    assert listed[name]["partitions"] == 3
    assert listed[name]["replication_factor"] == 1
    assert name in kbroker("topics", "list").out

    [described] = kbroker("topics", "describe", name, "--json").json()
    assert described["configs"]["retention.ms"] == "86400000"
    assert [p["partition"] for p in described["partitions"]] == [0, 1, 2]
    assert {(p["earliest_offset"], p["latest_offset"]) for p in described["partitions"]} == {(0, 0)}
    shown = kbroker("topics", "describe", name).out.splitlines()
    assert "retention.ms=86400000" in shown[0]
    assert len(shown) == 5

    assert kbroker("topics", "delete", name).out == f"{name}: deleted\n"
    gone = fails("topics", "describe", name)
    assert (gone.status, gone.err) == (1, f"kbroker: topic {name} does not exist\n")


def test_what_exists_already_or_not_at_all_can_be_forgiven(kbroker: Kbroker, fails: Kbroker, name: str) -> None:
    kbroker("topics", "create", name)
    again = fails("topics", "create", name)
    assert again.status == 1
    assert "already exists (TOPIC_ALREADY_EXISTS)" in again.err
    kbroker("topics", "create", name, "--if-not-exists")
    kbroker("topics", "delete", name)
    assert fails("topics", "delete", name).status == 1
    kbroker("topics", "delete", name, "--if-exists")


def test_of_several_topics_the_good_ones_are_created(fails: Kbroker, kbroker: Kbroker, name: str) -> None:
    done = fails("topics", "create", name, "no blanks please")
    assert done.status == 1
    assert done.out.startswith(f"{name}: created")
    assert "INVALID_TOPIC_EXCEPTION" in done.err
    assert done.err.count("\n") == 1
    kbroker("topics", "describe", name)


def test_validate_only_creates_nothing(kbroker: Kbroker, fails: Kbroker, name: str) -> None:
    kbroker("topics", "create", name, "--validate-only")
    assert fails("topics", "describe", name).status == 1
    refused = fails("topics", "create", name, "--validate-only", "--config", "retention.ms=soon")
    assert "INVALID_CONFIG" in refused.err


def test_a_topic_grows_and_its_configs_change(kbroker: Kbroker, fails: Kbroker, name: str) -> None:
    kbroker("topics", "create", name, "--partitions", "1", "--config", "cleanup.policy=delete")
    kbroker("topics", "alter", name, "--partitions", "4", "--set", "segment.ms=3600000")
    kbroker("topics", "alter", name, "--append", "cleanup.policy=compact")
    [described] = kbroker("topics", "describe", name, "--json").json()
    assert len(described["partitions"]) == 4
    assert described["configs"] == {"cleanup.policy": "delete,compact", "segment.ms": "3600000"}

    kbroker("topics", "alter", name, "--unset", "segment.ms", "--subtract", "cleanup.policy=compact")
    [described] = kbroker("topics", "describe", name, "--json").json()
    assert described["configs"] == {"cleanup.policy": "delete"}

    for change, reason in (
        (["--partitions", "2"], "INVALID_PARTITIONS"),
        (["--set", "segment.ms=soon"], "INVALID_CONFIG"),
        (["--set", "no.such.config=1"], "INVALID_CONFIG"),
    ):
        refused = fails("topics", "alter", name, *change)
        assert refused.status == 1
        assert reason in refused.err
        assert refused.err.count("\n") == 1
