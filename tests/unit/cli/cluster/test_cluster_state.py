"""What commands show of a cluster, from the responses of its brokers: brokers, problems, its layout, self-healing."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from kbroker.cli.cluster import cluster_state
from kbroker.cli.cluster.app import broker_statuses, lag_by_broker
from kbroker.cli.cluster.brokers import broker_summaries
from kbroker.cli.cluster.cluster_state import (
    cluster_summary,
    healing_json,
    healing_text,
    layout_of,
    measure_write_rates,
    read_healing,
    retired_replicas,
)
from kbroker.cli.common.partitions import PartitionHealth, ReplicaChanges, partition_health
from kbroker.client.admin import LogDirs, MetadataTopic, log_dirs
from kbroker.client.offsets import EARLIEST, LATEST
from kbroker.client.requests import Partition
from kbroker.metadata.reassignments.healing_states import HealingState
from kbroker.metadata.reassignments.placement.cluster_layout import ClusterBroker, PlacedPartition, cluster_layout
from kbroker.metadata.reassignments.placement.reassignment_plan import plan_of
from protocol.messages.k03_metadata import MetadataResponsePartition
from protocol.messages.k35_describe_log_dirs import (
    DescribeLogDirsPartition,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)
from protocol.messages.k60_describe_cluster import DescribeClusterBroker, DescribeClusterResponse
from protocol.messages.k10000_reassignment_plans import DescribedHealing

CLUSTER = DescribeClusterResponse(
    cluster_id="abc",
    controller_id=1,
    brokers=[
        DescribeClusterBroker(broker_id=2, host="b", port=9093),
        DescribeClusterBroker(broker_id=1, host="a", port=9092, rack="east"),
        DescribeClusterBroker(broker_id=4, host="::1", port=9095, is_fenced=True),
    ],
)
PLACED_ON = [
    DescribeClusterBroker(broker_id=1, rack="a"),
    DescribeClusterBroker(broker_id=2),
    DescribeClusterBroker(broker_id=3, rack="c", is_fenced=True),
    DescribeClusterBroker(broker_id=4, rack="c"),
]
DIRECTORIES = {1: LogDirs({("t", 0): 5, ("t", 1): 7}, 100), 2: LogDirs({("t", 0): 6, ("t", 1): 9}, None)}
NOW_MS = 1_000_000


def topic(*partitions: MetadataResponsePartition) -> MetadataTopic:
    return MetadataTopic("t", bytes(16), False, 0, partitions)


def row(leader: int, replicas: list[int], isr: list[int], index: int = 0) -> MetadataResponsePartition:
    return MetadataResponsePartition(partition_index=index, leader_id=leader, replica_nodes=replicas, isr_nodes=isr)


def test_brokers_with_their_replicas_and_bytes() -> None:
    directories = {1: LogDirs({("t", 0): 5, ("t", 1): 7}, 100), 2: LogDirs({}, None, is_cordoned=True)}
    partitions = [partition_health(row(1, [3, 1], [1]), 1), partition_health(row(-1, [2, 4], [4]), 1)]
    summaries = broker_summaries(CLUSTER, partitions, directories)
    assert [tuple(broker.values()) for broker in summaries] == [
        (1, "a:9092", "east", "controller", 1, 1, 1, False, 12, 100),
        (2, "b:9093", None, "running", 0, 1, 0, True, 0, None),
        (3, None, None, "unknown", 0, 1, 0, None, None, None),
        (4, "[::1]:9095", None, "fenced", 0, 1, 1, None, None, None),
    ]


def test_brokers_of_a_cluster_without_topics() -> None:
    assert [broker["replica_count"] for broker in broker_summaries(CLUSTER, [], {})] == [0, 0, 0]


def directory(sizes: dict[int, int], **fields: int) -> DescribeLogDirsResult:
    rows = [DescribeLogDirsPartition(partition_index=index, partition_size=size) for index, size in sizes.items()]
    return DescribeLogDirsResult(topics=[DescribeLogDirsTopic(name="t", partitions=rows)], **fields)


def test_log_directories_are_added_up() -> None:
    found = log_dirs([directory({0: 5, 1: 7}, usable_bytes=10), directory({1: 1}, usable_bytes=30)])
    assert found == LogDirs({("t", 0): 5, ("t", 1): 8}, 40)
    assert found.size_bytes == 13


def test_free_space_is_unknown_if_a_broker_does_not_report_it() -> None:
    assert log_dirs([directory({0: 5})]).free_bytes is None
    assert log_dirs([directory({0: 5}, usable_bytes=-1), directory({}, usable_bytes=30)]).free_bytes is None


def test_brokers_and_problems() -> None:
    partitions = [PartitionHealth(1, [3, 1], [1], 1), PartitionHealth(1, [1, 2], [1, 2], 1)]
    summaries = broker_statuses(CLUSTER, partitions, {1: 0, 2: 7, 3: None})
    assert [tuple(broker.values()) for broker in summaries] == [
        (1, "a:9092", "east", "controller", 2, 2, 2, 1, 0),
        (2, "b:9093", None, "running", 0, 1, 1, 0, 7),
        (3, None, None, "unknown", 0, 1, 0, 1, None),
        (4, "[::1]:9095", None, "fenced", 0, 0, 0, 0, 0),
    ]
    summary = cluster_summary(CLUSTER, 1, partitions)
    assert (summary["running_brokers"], summary["topic_count"], summary["partition_count"]) == (2, 1, 2)
    assert summary["conditions"] == {
        "under_replicated": 1,
        "at_min_isr": 1,
        "under_min_isr": 0,
        "offline": 0,
        "out_of_preference": 1,
    }


def test_the_status_of_a_cluster_without_topics() -> None:
    summaries = broker_statuses(CLUSTER, [], {})
    assert [broker["leads"] for broker in summaries] == [0, 0, 0]
    assert not any(cluster_summary(CLUSTER, 0, [])["conditions"].values())


def test_the_lag_of_a_broker_is_that_of_its_replicas() -> None:
    lags = {("a", 0): {1: 0, 2: 5, 3: None}, ("a", 1): {2: 2, 3: 1}, ("b", 0): {4: 0}}
    assert lag_by_broker(lags) == {1: 0, 2: 7, 3: None, 4: 0}


def test_brokers_that_are_fenced_or_do_not_respond_accept_no_replicas() -> None:
    layout = layout_of(PLACED_ON, [], DIRECTORIES, {})
    assert list(layout.brokers.values()) == [
        ClusterBroker(1, "a", True, 100),
        ClusterBroker(2, None, True, None),
        ClusterBroker(3, "c", False, None, is_away=True),
        ClusterBroker(4, "c", False, None),
    ]


def test_partitions_have_the_size_of_their_leaders_replica() -> None:
    rows = [row(-1, [1, 2], [], 1), row(1, [2, 1, 9], [1, 2], 0), row(3, [3], [3], 2)]
    layout = layout_of(PLACED_ON, [topic(*rows)], DIRECTORIES, {})
    assert layout.partitions == (
        PlacedPartition("t", 0, (2, 1, 9), 1, 5, frozenset({9})),
        PlacedPartition("t", 1, (1, 2), None, 9, frozenset({1, 2})),
        PlacedPartition("t", 2, (3,), 3, 0),
    )
    assert layout.brokers[9] == ClusterBroker(9, None, False)


def test_a_partition_that_is_being_reassigned_has_the_replicas_of_its_target() -> None:
    ongoing = {("t", 0): ReplicaChanges([4], [1])}
    (partition,) = layout_of(PLACED_ON, [topic(row(1, [2, 4, 1], [1, 2]))], DIRECTORIES, ongoing).partitions
    assert partition == PlacedPartition("t", 0, (2, 4), 1, 5, frozenset({4}), is_reassigning=True)


def test_partitions_that_a_topic_has_lost_are_found_by_their_logs() -> None:
    topics = [topic(row(1, [1], [1]), row(1, [1], [1]))]
    directories = {
        2: LogDirs({("t", 3): 0, ("t", 0): 5}, None),
        1: LogDirs({("t", 1): 5, ("t", 2): 0, ("t", 3): 0, ("created-meanwhile", 0): 5}, None),
    }
    assert retired_replicas(topics, directories) == {("t", 2): [1], ("t", 3): [1, 2]}


def test_write_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    offsets = {
        0: {EARLIEST: 100, LATEST: 1100, NOW_MS - 60_000: 500},
        1: {EARLIEST: 0, LATEST: 10, NOW_MS - 60_000: -1},
        2: {EARLIEST: 0, LATEST: 10},
        3: {EARLIEST: 5, LATEST: 5, NOW_MS - 60_000: 5},
    }

    def list_offsets(client: Any, partitions: Mapping[int, Sequence[Partition]], timestamp: int) -> dict[Any, int]:
        assert partitions == {1: [("t", index) for index in range(4)]}
        return {(1, ("t", index)): known[timestamp] for index, known in offsets.items() if timestamp in known}

    monkeypatch.setattr(cluster_state, "offsets_at_brokers", list_offsets)
    parts = [PlacedPartition("t", index, (1,), 1, 50_000) for index in range(4)]
    # Partitions that only change the order of replicas, or are empty, are not asked for.
    parts += [PlacedPartition("u", 0, (1, 2), 1, 50_000), PlacedPartition("u", 1, (1,), 1, 0)]
    layout = cluster_layout([ClusterBroker(1), ClusterBroker(2)], parts)
    targets = {("t", index): (2,) for index in range(4)} | {("u", 0): (2, 1), ("u", 1): (2,)}
    # 600 of 1000 records, so 30,000 bytes in 60 seconds.
    assert measure_write_rates(None, plan_of(layout, targets), NOW_MS) == {("t", 0): 500.0}


MINUTE = 60_000


def away(state: HealingState, *, is_away: bool = True, replicas: int = 40) -> DescribedHealing:
    return DescribedHealing(
        broker_id=3, is_away=is_away, state=state.value, replicas=replicas, since_ms=0, remaining_ms=18 * MINUTE
    )


def test_lines():
    assert healing_text(away(HealingState.WAITING), 12 * MINUTE) == (
        "broker 3 has been away for 12m: its 40 replicas are to be rebuilt elsewhere in 18m"
    )
    assert healing_text(away(HealingState.RUNNING, replicas=1), 12 * MINUTE) == (
        "broker 3 has been away for 12m: its 1 replica is being rebuilt: kbroker brokers plan --watch"
    )
    assert healing_text(away(HealingState.WAITING, is_away=False), 0) == (
        "broker 3 is back: it gets replicas back in 18m"
    )


@pytest.mark.parametrize("state", HealingState)
def test_every_state_has_a_text(state: HealingState) -> None:
    assert not healing_text(away(state), 1).endswith(f"are {state.value}")


def test_the_json():
    broker = away(HealingState.OUTAGE)
    broker.since_ms = -1
    assert healing_json(broker) == {
        "broker": 3,
        "is_away": True,
        "state": "outage",
        "replica_count": 40,
        "since_ms": None,
        "remaining_ms": 18 * MINUTE,
    }


def test_the_controller_is_asked_only_if_a_broker_is_away_or_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(cluster_state, "request_if_known", lambda *_: asked.append(1))
    read_healing(None, [{"state": "running", "replica_count": 3}, {"state": "controller", "replica_count": 2}])
    assert asked == []
    read_healing(None, [{"state": "fenced", "replica_count": 3}])
    read_healing(None, [{"state": "running", "replica_count": 0}])
    assert len(asked) == 2
