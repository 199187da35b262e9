"""The layout of a cluster for plans, from what its brokers say."""

from collections.abc import Mapping, Sequence
from typing import Any

from kbroker.cli.cluster.log_dirs import LogDirs, describe_log_dirs
from kbroker.cli.common.client import read_again
from kbroker.cli.common.output import print_note
from kbroker.cli.common.partitions.list_offsets import Partition
from kbroker.cli.common.partitions.reassignments import ReplicaChanges, reassignments
from kbroker.metadata.reassignments.placement.cluster_layout import (
    ClusterBroker,
    ClusterLayout,
    PlacedPartition,
    cluster_layout,
)

# How many retired partitions a note names.
MAX_NAMED = 5


def read_layout(client: Any) -> ClusterLayout:
    """Return the layout of the cluster that an admin client is connected to, with internal topics.

    A note names what it lacks: the partitions that only producers still use (docs/removing-partitions.md).
    """
    cluster = read_again(client.describe_cluster)
    topics = [topic for topic in read_again(lambda: client.describe_topics(None)) if not topic["error_code"]]
    running = [broker["broker_id"] for broker in cluster["brokers"] if not broker.get("is_fenced")]
    directories = describe_log_dirs(client, running)
    retired = [
        f"{topic}-{index} on {', '.join(map(str, brokers))}"
        for (topic, index), brokers in retired_replicas(topics, directories).items()
    ]
    if retired:
        others = f" and {len(retired) - MAX_NAMED} more" if len(retired) > MAX_NAMED else ""
        print_note(f"not moved, since only producers still use them: {'; '.join(retired[:MAX_NAMED])}{others}")
    return layout_of(cluster["brokers"], topics, directories, reassignments(client))


def retired_replicas(
    topics: Sequence[Mapping[str, Any]], directories: Mapping[int, LogDirs]
) -> dict[Partition, list[int]]:
    """Return the brokers with a log of a partition that its topic has lost, by partition in order."""
    counts = {topic["name"]: len(topic["partitions"]) for topic in topics}
    found: dict[Partition, list[int]] = {}
    for broker, directory in sorted(directories.items()):
        for topic, index in directory.sizes:
            if index >= counts.get(topic, index + 1):
                found.setdefault((topic, index), []).append(broker)
    return dict(sorted(found.items()))


def layout_of(
    brokers: Sequence[Mapping[str, Any]],
    topics: Sequence[Mapping[str, Any]],
    directories: Mapping[int, LogDirs],
    ongoing: Mapping[Partition, ReplicaChanges],
) -> ClusterLayout:
    """Return a layout from rows of DescribeCluster and Metadata, log directories by broker, and reassignments.

    A broker accepts replicas if it is not fenced nor cordoned, and reports its log directories. The size of a partition
    is that of the leader's replica, since a follower may lack some of it. Without a leader it is that of the largest
    replica. A partition that is being reassigned has the replicas that it will have.
    """
    return cluster_layout(
        [_broker(broker, directories.get(broker["broker_id"])) for broker in brokers],
        [
            _partition(topic["name"], row, directories, ongoing.get((topic["name"], row["partition_index"])))
            for topic in topics
            for row in topic["partitions"]
            if not _is_of_view((topic["name"], row["partition_index"]), row["leader_id"], directories)
        ],
    )


def _is_of_view(partition: Partition, leader: int, directories: Mapping[int, LogDirs]) -> bool:
    """Return whether the leader has no log of the partition: a view moves with its source."""
    return leader in directories and bool(directories[leader].sizes) and partition not in directories[leader].sizes


def _broker(broker: Mapping[str, Any], found: LogDirs | None) -> ClusterBroker:
    is_away = bool(broker.get("is_fenced"))
    accepts_replicas = not is_away and found is not None and not found.is_cordoned
    free_bytes = found.free_bytes if found else None
    return ClusterBroker(broker["broker_id"], broker["rack"], accepts_replicas, free_bytes, is_away)


def _partition(
    topic: str, row: Mapping[str, Any], directories: Mapping[int, LogDirs], changes: ReplicaChanges | None
) -> PlacedPartition:
    partition = (topic, row["partition_index"])
    sizes = {
        broker: directories[broker].sizes.get(partition, 0) for broker in row["replica_nodes"] if broker in directories
    }
    leader = row["leader_id"] if row["leader_id"] >= 0 else None
    replicas = [broker for broker in row["replica_nodes"] if changes is None or broker not in changes.removing]
    return PlacedPartition(
        *partition,
        tuple(replicas),
        leader,
        sizes[leader] if leader in sizes else max(sizes.values(), default=0),
        frozenset(replicas).difference(row["isr_nodes"]),
        is_reassigning=changes is not None,
    )
