"""Plans as text and as JSON."""

import json

import pytest

from kbroker.cli.cluster.plan_report import (
    broker_rows,
    move_rows,
    moves_text,
    plan_json,
    print_plan,
    racks_text,
    time_text,
)
from kbroker.metadata.reassignments.placement.balance import balance
from kbroker.metadata.reassignments.placement.cluster_layout import ClusterBroker, PlacedPartition, cluster_layout
from kbroker.metadata.reassignments.placement.drain import drain
from kbroker.metadata.reassignments.placement.reassignment_plan import CopyEstimate, plan_of

MIB = 1024 * 1024
LAYOUT = cluster_layout(
    [ClusterBroker(1, "a"), ClusterBroker(2, "a"), ClusterBroker(3, "b", free_bytes=50 * MIB)],
    [
        PlacedPartition("orders", 0, (1, 2), 1, 6 * MIB),
        PlacedPartition("orders", 1, (2, 1), 2, 4 * MIB),
        PlacedPartition("users", 0, (1, 3), 1),
    ],
)
PLAN = plan_of(LAYOUT, {("orders", 0): (1, 3), ("orders", 1): (3, 1), ("users", 0): (3, 1)})
NOTHING = plan_of(LAYOUT, {})


def test_moves_and_brokers_before_and_after() -> None:
    assert move_rows(PLAN) == [
        ["orders", 0, "1,2", "1,3", "6.0 MiB"],
        ["orders", 1, "2,1", "3,1", "4.0 MiB"],
        ["users", 0, "1,3", "3,1", "0 bytes"],
    ]
    assert move_rows(PLAN, limit=1) == [["orders", 0, "1,2", "1,3", "6.0 MiB"]]
    assert broker_rows(PLAN) == [
        [1, "a", "3", "2 -> 1", "10.0 MiB", None],
        [2, "a", "2 -> 0", "1 -> 0", "10.0 MiB -> 0 bytes", None],
        [3, "b", "1 -> 3", "0 -> 2", "0 bytes -> 10.0 MiB", "10.0 MiB"],
    ]


def test_what_the_lines_say() -> None:
    assert moves_text(PLAN) == "3 partitions: 10.0 MiB to copy, 1 partition without copies"
    assert moves_text(NOTHING) == "nothing to move"
    assert racks_text(PLAN.before, PLAN.after) == "racks: partitions that could be spread better over the racks: 2 -> 0"
    assert racks_text(PLAN.after, PLAN.after) == "racks: all partitions are spread over the racks as well as possible"
    assert time_text(PLAN, CopyEstimate(2 * MIB, 5.0)) == "time: about 5s if each broker copies 2.0 MiB/s"
    assert time_text(PLAN, None) == "time: not estimated, since the rate of copies is not known"
    assert time_text(NOTHING, None) == "time: nothing is copied"


def test_the_text_of_a_plan(capsys: pytest.CaptureFixture[str]) -> None:
    print_plan(PLAN, None)
    assert capsys.readouterr().out.splitlines() == [
        "TOPIC   PARTITION  REPLICAS  TARGET  COPIED",
        "orders          0  1,2       1,3     6.0 MiB",
        "orders          1  2,1       3,1     4.0 MiB",
        "users           0  1,3       3,1     0 bytes",
        "BROKER  RACK  REPLICAS  LEADERS  DISK_USE             RECEIVES",
        "     1  a     3         2 -> 1   10.0 MiB             -",
        "     2  a     2 -> 0    1 -> 0   10.0 MiB -> 0 bytes  -",
        "     3  b     1 -> 3    0 -> 2   0 bytes -> 10.0 MiB  10.0 MiB",
        "3 partitions: 10.0 MiB to copy, 1 partition without copies",
        "racks: partitions that could be spread better over the racks: 2 -> 0",
        "time: not estimated, since the rate of copies is not known",
    ]
    print_plan(NOTHING, None)
    assert capsys.readouterr().out.splitlines()[-3:] == [
        "nothing to move",
        "racks: partitions that could be spread better over the racks: 2",
        "time: nothing is copied",
    ]


def test_a_long_plan_shows_the_largest_moves(capsys: pytest.CaptureFixture[str]) -> None:
    partitions = [PlacedPartition("t", index, (1,), 1, index) for index in range(30)]
    print_plan(drain(cluster_layout([ClusterBroker(1), ClusterBroker(2)], partitions), [1]), None)
    output = capsys.readouterr()
    assert output.out.splitlines()[1].split()[:2] == ["t", "10"]
    assert output.err == "and 10 smaller moves: --json prints all\n"


def test_the_json_of_a_plan() -> None:
    document = json.loads(json.dumps(plan_json(PLAN, CopyEstimate(2 * MIB, 5.0))))
    assert document["moves"][1] == {
        "topic": "orders", "partition": 1, "original": [2, 1], "target": [3, 1], "copied_bytes": 4 * MIB
    }  # fmt: skip
    assert (document["copied_bytes"], document["estimated_seconds"]) == (10 * MIB, 5.0)
    assert document["brokers"][2] == {
        "broker": 3,
        "rack": "b",
        "accepts_replicas": True,
        "free_bytes": 50 * MIB,
        "received_bytes": 10 * MIB,
        "before": {"replicas": 1, "leaders": 0, "size_bytes": 0},
        "after": {"replicas": 3, "leaders": 2, "size_bytes": 10 * MIB},
    }
    assert document["before"] == {
        "rack_violations": 2, "replica_spread": 2, "leader_spread": 2, "bytes_spread": 10 * MIB
    }  # fmt: skip
    assert document["after"]["rack_violations"] == 0
    assert plan_json(NOTHING, None)["estimated_seconds"] is None
    assert plan_json(balance(LAYOUT), None)["after"]["rack_violations"] == 0
