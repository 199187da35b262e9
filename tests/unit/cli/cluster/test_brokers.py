"""`kbroker brokers list`: the rows of brokers that respond, that are fenced, and that only partitions name."""

from typing import Any

from kbroker.cli.cluster.brokers import broker_summaries
from kbroker.cli.cluster.log_dirs import LogDirs, log_dirs

CLUSTER = {
    "cluster_id": "abc",
    "controller_id": 1,
    "brokers": [
        {"broker_id": 2, "host": "b", "port": 9093, "rack": None},
        {"broker_id": 1, "host": "a", "port": 9092, "rack": "east", "is_fenced": False},
        {"broker_id": 4, "host": "::1", "port": 9095, "rack": None, "is_fenced": True},
    ],
}


def row(leader: int, replicas: list[int], isr: list[int]) -> dict[str, Any]:
    return {"leader_id": leader, "replica_nodes": replicas, "isr_nodes": isr}


def test_brokers_with_their_replicas_and_bytes() -> None:
    directories = {1: LogDirs({("t", 0): 5, ("t", 1): 7}, 100), 2: LogDirs({}, None, is_cordoned=True)}
    summaries = broker_summaries(CLUSTER, [row(1, [3, 1], [1]), row(-1, [2, 4], [4])], directories)
    assert [tuple(broker.values()) for broker in summaries] == [
        (1, "a:9092", "east", "controller", False, 1, 1, 0, 12, 100),
        (2, "b:9093", None, "running", True, 0, 1, 1, 0, None),
        (3, None, None, "unknown", None, 0, 1, 1, None, None),
        (4, "[::1]:9095", None, "fenced", None, 0, 1, 0, None, None),
    ]


def test_a_cluster_without_topics() -> None:
    assert [broker["replicas"] for broker in broker_summaries(CLUSTER, [], {})] == [0, 0, 0]


def directory(sizes: dict[int, int], **fields: int) -> dict[str, Any]:
    rows = [{"partition_index": index, "partition_size": size_bytes} for index, size_bytes in sizes.items()]
    return {"topics": [{"name": "t", "partitions": rows}], **fields}


def test_log_directories_are_added_up() -> None:
    found = log_dirs([directory({0: 5, 1: 7}, usable_bytes=10), directory({1: 1}, usable_bytes=30)])
    assert found == LogDirs({("t", 0): 5, ("t", 1): 8}, 40)
    assert found.size_bytes == 13


def test_free_space_is_unknown_if_a_broker_does_not_report_it() -> None:
    assert log_dirs([directory({0: 5})]).free_bytes is None
    assert log_dirs([directory({0: 5}, usable_bytes=-1), directory({}, usable_bytes=30)]).free_bytes is None
