"""The layout of a cluster for plans, from what its brokers say, and how fast producers write."""

from collections.abc import Mapping, Sequence

from kbroker.cli.cluster.cluster_state import LogDirs, read_cluster, running_log_dirs
from kbroker.cli.common.output import print_note
from kbroker.cli.common.partitions import ReplicaChanges, reassignments
from kbroker.client.admin import EARLIEST, LATEST, MetadataTopic, offsets_at_brokers
from kbroker.client.cluster import ClusterClient
from kbroker.client.requests import Partition
from kbroker.metadata.reassignments.placement.cluster_layout import (
    ClusterBroker,
    ClusterLayout,
    PlacedPartition,
    cluster_layout,
)
from kbroker.metadata.reassignments.placement.reassignment_plan import ReassignmentPlan
from protocol.messages.k03_metadata import MetadataResponsePartition
from protocol.messages.k60_describe_cluster import DescribeClusterBroker

# How many retired partitions a note names.
MAX_NAMED = 5
# The rate of writes is that of this time, by the timestamps of the records.
MEASURED_MS = 60_000


def read_layout(client: ClusterClient) -> ClusterLayout:
    """Return the layout of the cluster that an admin client is connected to, with internal topics.

    A note names what it lacks: the partitions that only producers still use (docs/removing-partitions.md).
    """
    cluster, topics = read_cluster(client)
    directories = running_log_dirs(client, cluster)
    retired = [
        f"{topic}-{index} on {', '.join(map(str, brokers))}"
        for (topic, index), brokers in retired_replicas(topics, directories).items()
    ]
    if retired:
        others = f" and {len(retired) - MAX_NAMED} more" if len(retired) > MAX_NAMED else ""
        print_note(f"not moved, since only producers still use them: {'; '.join(retired[:MAX_NAMED])}{others}")
    return layout_of(cluster.brokers, topics, directories, reassignments(client))


def retired_replicas(topics: Sequence[MetadataTopic], directories: Mapping[int, LogDirs]) -> dict[Partition, list[int]]:
    """Return the brokers with a log of a partition that its topic has lost, by partition in order."""
    counts = {topic.name: len(topic.partitions) for topic in topics}
    found: dict[Partition, list[int]] = {}
    for broker, directory in sorted(directories.items()):
        for topic, index in directory.sizes:
            if index >= counts.get(topic, index + 1):
                found.setdefault((topic, index), []).append(broker)
    return dict(sorted(found.items()))


def layout_of(
    brokers: Sequence[DescribeClusterBroker],
    topics: Sequence[MetadataTopic],
    directories: Mapping[int, LogDirs],
    ongoing: Mapping[Partition, ReplicaChanges],
) -> ClusterLayout:
    """Return a layout from rows of DescribeCluster and Metadata, log directories by broker, and reassignments.

    A broker accepts replicas if it is not fenced nor cordoned, and reports its log directories. The size of a partition
    is that of the leader's replica, since a follower may lack some of it. Without a leader it is that of the largest
    replica. A partition that is being reassigned has the replicas that it will have.
    """
    return cluster_layout(
        [_broker(broker, directories.get(broker.broker_id)) for broker in brokers],
        [
            _partition(topic.name, row, directories, ongoing.get((topic.name, row.partition_index)))
            for topic in topics
            for row in topic.partitions
            if not _is_of_view((topic.name, row.partition_index), row.leader_id, directories)
        ],
    )


def _is_of_view(partition: Partition, leader: int, directories: Mapping[int, LogDirs]) -> bool:
    """Return whether the leader has no log of the partition: a view moves with its source."""
    return leader in directories and bool(directories[leader].sizes) and partition not in directories[leader].sizes


def _broker(broker: DescribeClusterBroker, found: LogDirs | None) -> ClusterBroker:
    accepts_replicas = not broker.is_fenced and found is not None and not found.is_cordoned
    free_bytes = found.free_bytes if found else None
    return ClusterBroker(broker.broker_id, broker.rack, accepts_replicas, free_bytes, broker.is_fenced)


def _partition(
    topic: str, row: MetadataResponsePartition, directories: Mapping[int, LogDirs], changes: ReplicaChanges | None
) -> PlacedPartition:
    partition = (topic, row.partition_index)
    sizes = {
        broker: directories[broker].sizes.get(partition, 0) for broker in row.replica_nodes if broker in directories
    }
    leader = row.leader_id if row.leader_id >= 0 else None
    replicas = [broker for broker in row.replica_nodes if changes is None or broker not in changes.removing]
    return PlacedPartition(
        *partition,
        tuple(replicas),
        leader,
        sizes[leader] if leader in sizes else max(sizes.values(), default=0),
        frozenset(replicas).difference(row.isr_nodes),
        is_reassigning=changes is not None,
    )


def measure_write_rates(client: ClusterClient, plan: ReassignmentPlan, now_ms: int) -> dict[Partition, float]:
    """Return the bytes per second of the last minute, by partition that is copied. Those without records are missing.

    The copies of a plan have to catch up with these. The records of a minute are taken to have the average size of the
    partition's records.
    """
    sizes: dict[Partition, int] = {}
    leaders: dict[int, list[Partition]] = {}
    for move in plan.moves:
        if move.added and move.size_bytes and move.source is not None:
            sizes[move.topic, move.partition] = move.size_bytes
            leaders.setdefault(move.source, []).append((move.topic, move.partition))
    latest = offsets_at_brokers(client, leaders, LATEST)
    before = offsets_at_brokers(client, leaders, now_ms - MEASURED_MS)
    earliest = offsets_at_brokers(client, leaders, EARLIEST)
    rates = {}
    for key, offset in before.items():
        records = latest.get(key, offset) - earliest.get(key, offset)
        # The offset is -1 if no record is as new.
        new = latest.get(key, offset) - offset if offset >= 0 else 0
        if new > 0 and records > 0:
            rates[key[1]] = sizes[key[1]] * new / records * 1000 / MEASURED_MS
    return rates
