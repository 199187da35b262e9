"""`kbroker groups` against a broker."""

import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, ShareConsumer

from tests.compat.cli.conftest import COMMAND, TIMEOUT_S, Kbroker
from tests.compat.support import eventually

pytestmark = pytest.mark.compat


@pytest.fixture
def consumed(kbroker: Kbroker, name: str, group: str) -> None:
    """A topic with ten records in each of two partitions, all consumed by the group."""
    kbroker("topics", "create", name, "--partitions", "2")
    for partition in ("0", "1"):
        kbroker("produce", name, "--partition", partition, *"0123456789")
    assert len(kbroker("consume", name, "--group", group).lines()) == 20


def committed(kbroker: Kbroker, group: str) -> list[tuple[Any, ...]]:
    [described] = kbroker("groups", "describe", group, "--json").json()
    return [(row["partition"], row["committed_offset"], row["lag"]) for row in described["offsets"]]


@pytest.mark.usefixtures("consumed")
def test_an_empty_group_is_listed_described_and_deleted(
    kbroker: Kbroker, try_kbroker: Kbroker, name: str, group: str
) -> None:
    listed = {row["group"]: row for row in kbroker("groups", "list", "--json").json()}
    assert (listed[group]["state"], listed[group]["member_count"], listed[group]["lag"]) == ("Empty", 0, 0)
    assert group in kbroker("groups", "list", "--state", "empty").out
    assert group not in kbroker("groups", "list", "--state", "Stable").out
    kbroker("produce", name, "--partition", "1", "more")
    assert committed(kbroker, group) == [(0, 10, 0), (1, 10, 1)]
    output = kbroker("groups", "describe", group).out.splitlines()
    assert output[0] == f"{group}  classic  Empty  0 members  lag 1"
    assert output[1].split()[:5] == ["TOPIC", "PARTITION", "COMMITTED", "LATEST", "LAG"]
    assert [line.split()[:5] for line in output[2:]] == [[name, "0", "10", "10", "0"], [name, "1", "10", "11", "1"]]
    assert kbroker("groups", "delete", group).out == f"{group}: deleted\n"
    missing = try_kbroker("groups", "delete", group)
    assert missing.status == 1
    assert "(GROUP_ID_NOT_FOUND)" in missing.err
    assert "(GROUP_ID_NOT_FOUND)" in try_kbroker("groups", "describe", group).err


@pytest.mark.usefixtures("consumed")
def test_only_execute_resets_offsets(kbroker: Kbroker, try_kbroker: Kbroker, name: str, group: str) -> None:
    plan = kbroker("groups", "reset-offsets", group, "--topic", name, "--to-earliest")
    assert "--execute" in plan.err
    assert committed(kbroker, group) == [(0, 10, 0), (1, 10, 0)]

    for options, expected in (
        (["--topic", f"{name}:1", "--to-offset", "4"], [10, 4]),
        (["--all-topics", "--shift-by", "-3"], [7, 1]),
        (["--topic", name, "--to-latest"], [10, 10]),
        (["--topic", name, "--to-offset", "500"], [10, 10]),
        (["--topic", name, "--to-datetime", "2020-01-01T00:00:00.000"], [0, 0]),
        (["--topic", name, "--by-duration", "1d"], [0, 0]),
    ):
        [done] = kbroker("groups", "reset-offsets", group, *options, "--execute", "--json").json()
        assert done["executed"] is True
        assert [offset for _, offset, _ in committed(kbroker, group)] == expected
    assert len(kbroker("consume", name, "--group", group).lines()) == 20
    missing = try_kbroker("groups", "reset-offsets", group, "--topic", f"{name}:9", "--to-earliest")
    assert missing.err == f"kbroker: topic {name} has no partition 9: it has 2\n"


def test_a_group_with_members_is_described_and_not_reset(
    kbroker: Kbroker, try_kbroker: Kbroker, environment: dict[str, str], name: str, group: str
) -> None:
    kbroker("topics", "create", name, "--partitions", "2")
    kbroker("produce", name, "v")
    command = [*COMMAND, "consume", name, "--group", group, "--follow"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as member:
        assert member.stdout is not None
        assert member.stdout.readline() == b"v\n"
        [described] = kbroker("groups", "describe", group, "--json").json()
        assert described["state"] == "Stable"
        assert [[row["partition"] for row in member["partitions"]] for member in described["members"]] == [[0, 1]]
        assert "127.0.0.1" in kbroker("groups", "describe", group, "--members").out
        in_use = try_kbroker("groups", "reset-offsets", group, "--all-topics", "--to-earliest", "--execute")
        assert in_use.status == 1
        assert in_use.err == (
            f"kbroker: Assignments can only be reset if the group '{group}' is inactive, "
            "but the current state is Stable.\n"
        )
        assert "(NON_EMPTY_GROUP)" in try_kbroker("groups", "delete", group).err
        eventually(lambda: committed(kbroker, group)[0][1:] != (None, None), "a committed offset")
        subscribed = try_kbroker("groups", "delete-offsets", group, "--topic", name)
        assert "(GROUP_SUBSCRIBED_TO_TOPIC)" in subscribed.err
        member.send_signal(signal.SIGTERM)
        assert member.wait(TIMEOUT_S) == 0
    # The member has left the group, and committed the record that it printed.
    [described] = eventually(
        lambda: [g for g in kbroker("groups", "describe", group, "--json").json() if g["state"] == "Empty"],
        "the group is empty",
    )
    assert sum(row["committed_offset"] or 0 for row in described["offsets"]) == 1


def test_offsets_of_a_new_group_are_set(kbroker: Kbroker, name: str, group: str) -> None:
    kbroker("topics", "create", name, "--partitions", "1")
    kbroker("produce", name, *"abc")
    kbroker("groups", "reset-offsets", group, "--topic", name, "--to-offset", "2", "--execute")
    assert kbroker("consume", name, "--group", group).out == "c\n"


def test_plan_files(kbroker: Kbroker, try_kbroker: Kbroker, tmp_path: Path, name: str, group: str) -> None:
    kbroker("topics", "create", name, "--partitions", "2")
    for partition in ("0", "1"):
        kbroker("produce", name, "--partition", partition, *"0123456789")
    other = f"{group}-other"
    plan = tmp_path / "plan.csv"
    plan.write_text(f"{group},{name},0,3\n{group},{name},1,99\n{other},{name},0,5\n")
    done = kbroker("groups", "reset-offsets", "--from-file", str(plan), "--execute")
    assert f"{group}, {name}-1: reset to 10: 99 is after the log end offset 10" in done.err
    assert committed(kbroker, group) == [(0, 3, 7), (1, 10, 0)]
    assert committed(kbroker, other) == [(0, 5, 5)]

    exported = kbroker("groups", "reset-offsets", group, other, "--all-topics", "--to-current", "--export")
    assert exported.out == f"{group},{name},0,3\n{group},{name},1,10\n{other},{name},0,5\n"
    alone = kbroker("groups", "reset-offsets", group, "--all-topics", "--to-current", "--export").out
    assert alone == f"{name},0,3\n{name},1,10\n"
    kbroker("groups", "reset-offsets", group, "--all-topics", "--to-latest", "--execute")
    plan.write_text(alone)
    kbroker("groups", "reset-offsets", group, "--from-file", str(plan), "--execute")
    assert committed(kbroker, group) == [(0, 3, 7), (1, 10, 0)]
    # The broker also has groups of other tests, and those with members cannot be reset.
    of_all = try_kbroker("groups", "reset-offsets", "--all-groups", "--topic", name, "--to-earliest", "--json")
    assert group in of_all.out
    others = [line for line in of_all.err.splitlines() if "can only be reset if" in line]
    assert of_all.status == (1 if others else 0)
    assert not any(group in line for line in others)


def test_other_groups_are_reset_when_one_cannot_be(
    kbroker: Kbroker, try_kbroker: Kbroker, name: str, group: str
) -> None:
    kbroker("topics", "create", name, "--partitions", "1")
    kbroker("produce", name, *"abc")
    kbroker("groups", "reset-offsets", group, "--topic", name, "--to-latest", "--execute")
    done = try_kbroker(
        "groups", "reset-offsets", group, f"{group}-new", "--topic", name, "--shift-by", "-1", "--execute"
    )
    assert done.status == 1
    assert done.err == f"kbroker: group {group}-new: cannot shift {name}-0: nothing is committed for it\n"
    assert committed(kbroker, group) == [(0, 2, 1)]


@pytest.mark.usefixtures("consumed")
def test_committed_offsets_of_one_partition_are_deleted(
    kbroker: Kbroker, try_kbroker: Kbroker, name: str, group: str
) -> None:
    done = kbroker("groups", "delete-offsets", group, "--topic", f"{name}:1")
    assert done.out == f"{group}, {name}-1: deleted\n"
    assert committed(kbroker, group) == [(0, 10, 0)]
    repeated = try_kbroker("groups", "delete-offsets", group, "--topic", f"{name}:1")
    assert (repeated.status, repeated.err) == (1, f"kbroker: group {group}: nothing is committed for {name}:1\n")


def test_a_group_of_the_consumer_protocol(
    kbroker: Kbroker, try_kbroker: Kbroker, bootstrap: str, name: str, group: str
) -> None:
    kbroker("topics", "create", name, "--partitions", "2")
    kbroker("produce", name, "--partition", "1", *"abc")
    settings = {"bootstrap.servers": bootstrap, "group.id": group, "group.protocol": "consumer"}
    consumer = Consumer({**settings, "client.id": "reader", "auto.offset.reset": "earliest"})
    consumer.subscribe([name])
    for _ in range(3):
        eventually(lambda: consumer.poll(1), "a record")
    consumer.commit(asynchronous=False)
    listed = {row["group"]: row for row in kbroker("groups", "list", "--type", "consumer", "--json").json()}
    assert (listed[group]["state"], listed[group]["member_count"], listed[group]["lag"]) == ("Stable", 1, 0)
    [described] = kbroker("groups", "describe", group, "--json").json()
    assert (described["type"], described["assignor"]) == ("consumer", "uniform")
    assert described["epoch"] == described["assignment_epoch"] > 0
    [member] = described["members"]
    assert (member["epoch"], member["target_partitions"]) == (described["epoch"], None)
    assert member["partitions"] == [{"topic": name, "partition": 0}, {"topic": name, "partition": 1}]
    assert [(row["committed_offset"], row["lag"], row["client_id"]) for row in described["offsets"]][1] == (
        3,
        0,
        "reader",
    )
    assert " EPOCH " in kbroker("groups", "describe", group, "--members").out
    in_use = try_kbroker("groups", "reset-offsets", group, "--all-topics", "--to-earliest", "--execute")
    assert "but the current state is Stable" in in_use.err
    consumer.close()
    eventually(
        lambda: kbroker("groups", "describe", group, "--json").json()[0]["state"] == "Empty", "the group is empty"
    )
    kbroker("groups", "reset-offsets", group, "--topic", name, "--to-offset", "1", "--execute")
    assert committed(kbroker, group) == [(0, 0, 0), (1, 1, 2)]
    kbroker("groups", "delete-offsets", group, "--topic", f"{name}:0")
    assert kbroker("groups", "delete", group).out == f"{group}: deleted\n"


def test_a_share_group(kbroker: Kbroker, try_kbroker: Kbroker, bootstrap: str, name: str, group: str) -> None:
    kbroker("topics", "create", name, "--partitions", "2")
    kbroker("produce", name, "--partition", "1", *"abc")
    kbroker("configs", "set", "group", group, "share.auto.offset.reset=earliest")
    with ShareConsumer({"bootstrap.servers": bootstrap, "group.id": group, "client.id": "worker"}) as worker:
        worker.subscribe([name])
        assert eventually(lambda: len(worker.poll(1)), "the records") == 3
        worker.commit_sync()
        [described] = kbroker("groups", "describe", group, "--json").json()
        assert (described["type"], described["state"], described["assignor"]) == ("share", "Stable", "simple")
        assert [[row["partition"] for row in member["partitions"]] for member in described["members"]] == [[0, 1]]
        assert "(NON_EMPTY_GROUP)" in try_kbroker("groups", "delete", group).err
    assert group in kbroker("groups", "list", "--type", "share").out

    def offsets() -> list[tuple[int, int, int]]:
        [described] = kbroker("groups", "describe", group, "--json").json()
        return [(row["partition"], row["start_offset"], row["lag"]) for row in described["offsets"]]

    assert (1, 3, 0) in offsets()
    kbroker("groups", "reset-offsets", group, "--topic", f"{name}:1", "--to-offset", "1", "--execute")
    assert (1, 1, 2) in offsets()
    assert "whole topics" in try_kbroker("groups", "delete-offsets", group, "--topic", f"{name}:1").err
    assert kbroker("groups", "delete-offsets", group, "--topic", name).out == f"{group}, {name}: deleted\n"
    assert offsets() == []
    assert kbroker("groups", "delete", group).out == f"{group}: deleted\n"
