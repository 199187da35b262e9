"""`kbroker cluster status`: the brokers, those that replicas are assigned to and that are not known, and problems."""

from kbroker.cli.cluster.app import cluster_summary, lag_by_broker
from kbroker.cli.common.partitions.partition_health import PartitionHealth

CLUSTER = {
    "cluster_id": "abc",
    "controller_id": 1,
    "brokers": [
        {"broker_id": 2, "host": "b", "port": 9093, "rack": None},
        {"broker_id": 1, "host": "a", "port": 9092, "rack": "east", "is_fenced": False},
        {"broker_id": 4, "host": "::1", "port": 9095, "rack": None, "is_fenced": True},
    ],
}


def test_brokers_and_problems() -> None:
    partitions = [PartitionHealth(1, [3, 1], [1], 1), PartitionHealth(1, [1, 2], [1, 2], 1)]
    summary = cluster_summary(CLUSTER, 1, partitions, {1: 0, 2: 7, 3: None})
    assert [tuple(broker.values()) for broker in summary["brokers"]] == [
        (1, "a:9092", "east", "controller", 2, 1, 2, 2, 0),
        (2, "b:9093", None, "running", 0, 0, 1, 1, 7),
        (3, None, None, "unknown", 0, 1, 1, 0, None),
        (4, "[::1]:9095", None, "fenced", 0, 0, 0, 0, 0),
    ]
    assert summary["partitions"] == {
        "total": 2,
        "under-replicated": 1,
        "at-min-isr": 1,
        "under-min-isr": 0,
        "offline": 0,
        "out-of-preference": 1,
    }


def test_a_cluster_without_topics() -> None:
    summary = cluster_summary(CLUSTER, 0, [], {})
    assert [broker["leads"] for broker in summary["brokers"]] == [0, 0, 0]
    assert not any(summary["partitions"].values())


def test_the_lag_of_a_broker_is_that_of_its_replicas() -> None:
    lags = {("a", 0): {1: 0, 2: 5, 3: None}, ("a", 1): {2: 2, 3: 1}, ("b", 0): {4: 0}}
    assert lag_by_broker(lags) == {1: 0, 2: 7, 3: None, 4: 0}
