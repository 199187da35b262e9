"""The layout of a cluster from responses of its brokers."""

from kbroker.cli.cluster.layout_reader import layout_of, retired_replicas
from kbroker.cli.cluster.log_dirs import LogDirs
from kbroker.cli.common.partitions.reassignments import ReplicaChanges
from kbroker.metadata.reassignments.placement.cluster_layout import ClusterBroker, PlacedPartition

BROKERS = [
    {"broker_id": 1, "rack": "a"},
    {"broker_id": 2, "rack": None, "is_fenced": False},
    {"broker_id": 3, "rack": "c", "is_fenced": True},
    {"broker_id": 4, "rack": "c", "is_fenced": False},
]
DIRECTORIES = {1: LogDirs({("t", 0): 5, ("t", 1): 7}, 100), 2: LogDirs({("t", 0): 6, ("t", 1): 9}, None)}


def test_brokers_that_are_fenced_or_do_not_respond_accept_no_replicas() -> None:
    layout = layout_of(BROKERS, [], DIRECTORIES, {})
    assert list(layout.brokers.values()) == [
        ClusterBroker(1, "a", True, 100),
        ClusterBroker(2, None, True, None),
        ClusterBroker(3, "c", False, None, is_away=True),
        ClusterBroker(4, "c", False, None),
    ]


def test_partitions_have_the_size_of_their_leaders_replica() -> None:
    rows = [
        {"partition_index": 1, "leader_id": -1, "replica_nodes": [1, 2], "isr_nodes": []},
        {"partition_index": 0, "leader_id": 1, "replica_nodes": [2, 1, 9], "isr_nodes": [1, 2]},
        {"partition_index": 2, "leader_id": 3, "replica_nodes": [3], "isr_nodes": [3]},
    ]
    layout = layout_of(BROKERS, [{"name": "t", "partitions": rows}], DIRECTORIES, {})
    assert layout.partitions == (
        PlacedPartition("t", 0, (2, 1, 9), 1, 5, frozenset({9})),
        PlacedPartition("t", 1, (1, 2), None, 9, frozenset({1, 2})),
        PlacedPartition("t", 2, (3,), 3, 0),
    )
    assert layout.brokers[9] == ClusterBroker(9, None, False)


def test_a_partition_that_is_being_reassigned_has_the_replicas_of_its_target() -> None:
    row = {"partition_index": 0, "leader_id": 1, "replica_nodes": [2, 4, 1], "isr_nodes": [1, 2]}
    ongoing = {("t", 0): ReplicaChanges([4], [1])}
    (partition,) = layout_of(BROKERS, [{"name": "t", "partitions": [row]}], DIRECTORIES, ongoing).partitions
    assert partition == PlacedPartition("t", 0, (2, 4), 1, 5, frozenset({4}), is_reassigning=True)


def test_partitions_that_a_topic_has_lost_are_found_by_their_logs() -> None:
    topics = [{"name": "t", "partitions": [{}, {}]}]
    directories = {
        2: LogDirs({("t", 3): 0, ("t", 0): 5}, None),
        1: LogDirs({("t", 1): 5, ("t", 2): 0, ("t", 3): 0, ("created-meanwhile", 0): 5}, None),
    }
    assert retired_replicas(topics, directories) == {("t", 2): [1], ("t", 3): [1, 2]}
