"""`kbroker cluster status`: the brokers, those that replicas are assigned to and that are not known, and problems."""

from kbroker.cli.cluster.app import cluster_summary
from kbroker.cli.common.partition_health import PartitionHealth

CLUSTER = {
    "cluster_id": "abc",
    "controller_id": 1,
    "brokers": [
        {"broker_id": 2, "host": "b", "port": 9093, "rack": None},
        {"broker_id": 1, "host": "a", "port": 9092, "rack": "east", "is_fenced": False},
        {"broker_id": 4, "host": "d", "port": 9095, "rack": None, "is_fenced": True},
    ],
}


def test_brokers_and_problems() -> None:
    partitions = [PartitionHealth(1, [3, 1], [1], 1), PartitionHealth(1, [1, 2], [1, 2], 1)]
    summary = cluster_summary(CLUSTER, 1, partitions)
    assert [tuple(broker.values()) for broker in summary["brokers"]] == [
        (1, "a:9092", "east", "controller", 2, 1, 2, 2),
        (2, "b:9093", None, "running", 0, 0, 1, 1),
        (3, None, None, "unknown", 0, 1, 1, 0),
        (4, "d:9095", None, "fenced", 0, 0, 0, 0),
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
    summary = cluster_summary(CLUSTER, 0, [])
    assert [broker["leads"] for broker in summary["brokers"]] == [0, 0, 0]
    assert not any(summary["partitions"].values())
