"""The state of a cluster as its brokers report it: brokers, problems, self-healing; and its layout for
plans, with how fast producers write.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kbroker.cli.common.client import request_if_known
from kbroker.cli.common.output import Cell, print_heading, print_note
from kbroker.cli.common.partitions import (
    CONDITIONS,
    NO_REASSIGNMENT,
    PartitionHealth,
    ReplicaChanges,
    min_isr_by_topic,
    partition_health,
    reassignments,
)
from kbroker.cli.common.values import count_text, format_duration
from kbroker.client.admin import LogDirs, MetadataTopic, describe_cluster, describe_log_dirs, describe_topics
from kbroker.client.cluster import ClusterClient
from kbroker.client.offsets import EARLIEST, LATEST, offsets_at_brokers
from kbroker.client.requests import Partition
from kbroker.common import format_address
from kbroker.metadata.reassignments.placement.cluster_layout import (
    ClusterBroker,
    ClusterLayout,
    PlacedPartition,
    cluster_layout,
)
from kbroker.metadata.reassignments.placement.reassignment_plan import ReassignmentPlan
from protocol.messages.k03_metadata import MetadataResponsePartition
from protocol.messages.k60_describe_cluster import DescribeClusterBroker, DescribeClusterResponse
from protocol.messages.k10000_reassignment_plans import (
    DescribedHealing,
    DescribeReassignmentPlanRequest,
    DescribeReassignmentPlanResponse,
)
from protocol.messages.k10003_describe_broker import DescribeBrokerRequest, DescribeBrokerResponse


def broker_state(broker: DescribeClusterBroker | None, controller_id: int) -> str:
    """Return the state of a broker, as far as clients can see it; None for one that only partitions name.

    The controller knows a fenced broker, which serves no clients: it is probably down. A broker that is shutting down
    is running for clients, until it is fenced.
    """
    if broker is None:
        return "unknown"
    if broker.is_fenced:
        return "fenced"
    return "controller" if broker.broker_id == controller_id else "running"


def read_cluster(client: ClusterClient) -> tuple[DescribeClusterResponse, list[MetadataTopic]]:
    """Return the brokers, and the topics that have no error."""
    return describe_cluster(client), [topic for topic in describe_topics(client) if not topic.error_code]


def read_health(
    client: ClusterClient, topics: Sequence[MetadataTopic], moving: Mapping[Partition, ReplicaChanges]
) -> dict[Partition, PartitionHealth]:
    """Return the health of all partitions of the topics. `moving`: those that are being reassigned."""
    min_isr = min_isr_by_topic(client, [topic.name for topic in topics])
    return {
        (topic.name, row.partition_index): partition_health(
            row, min_isr[topic.name], moving.get((topic.name, row.partition_index), NO_REASSIGNMENT).adding
        )
        for topic in topics
        for row in topic.partitions
    }


def cluster_summary(
    cluster: DescribeClusterResponse, topics: int, partitions: Sequence[PartitionHealth]
) -> dict[str, Any]:
    """Return the JSON of a cluster without its brokers. `controller` is null while there is none."""
    return {
        "cluster_id": cluster.cluster_id,
        "controller": cluster.controller_id if cluster.controller_id >= 0 else None,
        "running_brokers": sum(not broker.is_fenced for broker in cluster.brokers),
        "topic_count": topics,
        "partition_count": len(partitions),
        "conditions": {name.replace("-", "_"): sum(map(is_met, partitions)) for name, is_met in CONDITIONS.items()},
    }


def print_cluster(summary: Mapping[str, Any]) -> None:
    """Print the heading of a cluster."""
    counts = ("running_brokers", "broker"), ("topic_count", "topic"), ("partition_count", "partition")
    print_heading(
        f"cluster {summary['cluster_id']}", "  ".join(count_text(summary[name], noun) for name, noun in counts)
    )


def condition_rows(summary: Mapping[str, Any]) -> list[list[Cell]]:
    """Return the names of the conditions as options of `topics describe`, and the numbers of their partitions."""
    return [[name, summary["conditions"][name.replace("-", "_")]] for name in CONDITIONS]


def broker_rows(
    cluster: DescribeClusterResponse, partitions: Sequence[PartitionHealth]
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the id of each broker, with what its JSON begins with: registered ones, and others that have replicas."""
    known = {broker.broker_id: broker for broker in cluster.brokers}
    leads = Counter(part.leader for part in partitions)
    replicas = Counter(broker for part in partitions for broker in part.replicas)
    in_sync = Counter(broker for part in partitions for broker in part.isr)
    for broker_id in sorted({*known, *replicas}):
        broker = known.get(broker_id)
        yield (
            broker_id,
            {
                "broker": broker_id,
                "address": format_address(broker.host, broker.port) if broker else None,
                "rack": broker.rack if broker else None,
                "state": broker_state(broker, cluster.controller_id),
                "leads": leads[broker_id],
                "replica_count": replicas[broker_id],
                "in_sync": in_sync[broker_id],
            },
        )


def running_log_dirs(client: ClusterClient, cluster: DescribeClusterResponse) -> dict[int, LogDirs]:
    """Return the log directories of the brokers that are not fenced."""
    return describe_log_dirs(client, [broker.broker_id for broker in cluster.brokers if not broker.is_fenced])


def read_problems(client: ClusterClient) -> DescribeBrokerResponse:
    """Return what a broker knows of brokers that cannot write to their disks, or could not until recently, and of
    partitions without a leader because the metadata are older than the logs, and of brokers to which it cannot connect.
    A broker of Apache Kafka knows of none.
    """
    return request_if_known(client, DescribeBrokerRequest(), DescribeBrokerResponse) or DescribeBrokerResponse()


def problem_texts(problems: DescribeBrokerResponse, brokers: int) -> Iterator[str]:
    """Yield a line about each problem. `brokers`: the number of brokers of the cluster."""
    effect = "other brokers lead, where one is in sync" if brokers > 1 else "it refuses records until it can"
    for broker in problems.failing_brokers:
        yield f"broker {broker} cannot write to its disk: {effect}"
    for broker in problems.brokers_on_probation:
        yield f"broker {broker} can write to its disk again, and gets its roles back soon"
    for failed in problems.failed_handshakes:
        yield f"broker {problems.broker_id} cannot connect to broker {failed.broker_id}: {failed.reason}"
    if problems.recovering_partitions:
        yield (
            f"{count_text(problems.recovering_partitions, 'partition')} without a leader: the coordination service was "
            "restored from an older copy, and the logs of all replicas are compared first. Start the brokers that are "
            "away; docs/cluster.md says how to go on without them."
        )


# What self-healing does about brokers that are away, or that have returned.

ABSENT = ("fenced", "unknown")
# The end of a line about a broker that is away, by the state; one that has returned.
_REBUILT = {
    "waiting": "to be rebuilt elsewhere in {time}",
    "outage": "not rebuilt while more brokers are away than live",
    "blocked": "not rebuilt before another plan has ended, or its throttle is removed: kbroker brokers plan",
    "running": "being rebuilt: kbroker brokers plan --watch",
    "given up": "not rebuilt, since that plan was cancelled",
    "impossible": "not rebuilt: no live broker may hold them, or no replica leads (see the log of the controller)",
    "due": "about to be rebuilt",
}
_GIVEN_BACK = {
    "waiting": "it gets replicas back in {time}",
    "outage": "it gets replicas back when fewer brokers are away",
    "blocked": "it gets replicas back when another plan has ended",
    "running": "it gets replicas back: kbroker brokers plan --watch",
    "due": "it is about to get replicas back",
}


def read_healing(client: ClusterClient, brokers: Sequence[Mapping[str, Any]]) -> list[DescribedHealing]:
    """Return what self-healing does if a broker is away or has no replicas; [] of brokers of Apache Kafka.

    `brokers`: with state and replica_count.
    """
    if not any(broker["state"] in ABSENT or not broker["replica_count"] for broker in brokers):
        return []
    request = DescribeReassignmentPlanRequest(include_moves=False)
    response = request_if_known(client, request, DescribeReassignmentPlanResponse)
    return [] if response is None else response.healing


def print_healing(healing: Sequence[DescribedHealing], now_ms: int) -> None:
    for broker in healing:
        print_note(healing_text(broker, now_ms))


def healing_text(broker: DescribedHealing, now_ms: int) -> str:
    """Return a line about one broker."""
    time = format_duration(broker.remaining_ms)
    if not broker.is_away:
        return f"broker {broker.broker_id} is back: {_GIVEN_BACK.get(broker.state, broker.state).format(time=time)}"
    away = f"broker {broker.broker_id} is away"
    if 0 <= broker.since_ms < now_ms:
        duration = format_duration(round((now_ms - broker.since_ms) / 1000) * 1000)
        away = f"broker {broker.broker_id} has been away for {duration}"
    verb = "is" if broker.replicas == 1 else "are"
    end = _REBUILT.get(broker.state, broker.state).format(time=time)
    return f"{away}: its {count_text(broker.replicas, 'replica')} {verb} {end}"


def healing_json(broker: DescribedHealing) -> dict[str, Any]:
    return {
        "broker": broker.broker_id,
        "is_away": broker.is_away,
        "state": broker.state,
        "replica_count": broker.replicas,
        "since_ms": broker.since_ms if broker.since_ms >= 0 else None,
        "remaining_ms": broker.remaining_ms,
    }


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
