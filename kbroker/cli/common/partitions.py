"""What commands show of partitions: what is wrong with them, the lag of replicas, and reassignments in progress."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from kbroker.cli.common.client import CLIENT_ERRORS, error_code_text, raise_error
from kbroker.cli.common.errors import CliError
from kbroker.cli.common.output import print_note
from kbroker.client.admin import REQUEST_TIMEOUT_MS, MetadataTopic, topic_configs
from kbroker.client.cluster import ClusterClient
from kbroker.client.offsets import DEBUGGING_CONSUMER, LATEST, offsets_at_brokers
from kbroker.client.requests import CONTROLLER_ERRORS, Partition, by_topic
from kbroker.client.retries import Retries
from protocol.errors import ErrorCode
from protocol.messages.k03_metadata import MetadataResponsePartition
from protocol.messages.k45_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignableTopic,
)

MIN_ISR = "min.insync.replicas"


class PartitionHealth(NamedTuple):
    """A partition as the brokers describe it. `min_isr`: the topic's min.insync.replicas. `leader` is -1 for none.

    `adding`: the replicas that a reassignment adds.
    """

    leader: int
    replicas: Sequence[int]
    isr: Sequence[int]
    min_isr: int
    adding: Sequence[int] = ()

    @property
    def effective_min_isr(self) -> int:
        """The in-sync replicas that acks=all needs: no more than there are replicas (KAFKA-15583)."""
        return min(self.min_isr, len(self.replicas))


# The first four are options of Kafka's kafka-topics, where at-min-isr includes partitions with all their replicas. A
# reassignment that is not complete does not make a partition under-replicated.
CONDITIONS: Mapping[str, Callable[[PartitionHealth], bool]] = {
    "under-replicated": lambda part: len(part.isr) < len(part.replicas) - len(part.adding),
    "at-min-isr": lambda part: len(part.isr) == part.effective_min_isr < len(part.replicas),
    "under-min-isr": lambda part: len(part.isr) < part.effective_min_isr,
    "offline": lambda part: part.leader < 0,
    "out-of-preference": lambda part: part.leader >= 0 and part.leader != part.replicas[0],
}


def min_isr_by_topic(client: ClusterClient, topics: Sequence[str]) -> dict[str, int]:
    """Return min.insync.replicas of each topic, 1 if the broker does not say."""
    values = topic_configs(client, topics, [MIN_ISR])
    return {topic: int(values.get(topic, {}).get(MIN_ISR, 1)) for topic in topics}


def partition_health(partition: MetadataResponsePartition, min_isr: int, adding: Sequence[int] = ()) -> PartitionHealth:
    """Return the health of a partition of a Metadata response."""
    return PartitionHealth(partition.leader_id, partition.replica_nodes, partition.isr_nodes, min_isr, adding)


def partition_rows(partitions: Mapping[str, Iterable[int]]) -> list[dict[str, Any]]:
    """Return the JSON of partitions of several topics, in order."""
    return [
        {"topic": topic, "partition": index}
        for topic, indexes in sorted(partitions.items())
        for index in sorted(indexes)
    ]


def partitions_text(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return the same as text: "t:0,1 u:2"."""
    grouped = by_topic((row["topic"], row["partition"]) for row in rows)
    return " ".join(f"{topic}:{','.join(map(str, indexes))}" for topic, indexes in grouped.items())


# The lag of replicas: the records that their leader has and they do not. Each broker reports the log end offsets of its
# replicas to a debugging consumer, as Apache Kafka's brokers do.

UNKNOWN_LAG = "?"

# By broker id; None: the replica or the leader did not respond.
ReplicaLag = Mapping[int, int | None]


def replica_lag(client: ClusterClient, topics: Iterable[MetadataTopic]) -> dict[Partition, ReplicaLag]:
    """Return the lag of all replicas of the topics.

    The leaders are asked first, so a replica that has everything which the leader had then has no lag.
    """
    partitions = {(topic.name, row.partition_index): row for topic in topics for row in topic.partitions}
    led: dict[int, list[Partition]] = {}
    followed: dict[int, list[Partition]] = {}
    for partition, row in partitions.items():
        for broker in row.replica_nodes:
            (led if broker == row.leader_id else followed).setdefault(broker, []).append(partition)
    ends = offsets_at_brokers(client, led, LATEST, DEBUGGING_CONSUMER)
    ends |= offsets_at_brokers(client, followed, LATEST, DEBUGGING_CONSUMER)
    return {
        partition: {
            broker: _lag(ends.get((row.leader_id, partition)), ends.get((broker, partition)))
            for broker in row.replica_nodes
        }
        for partition, row in partitions.items()
    }


def _lag(leader_end: int | None, end: int | None) -> int | None:
    return None if leader_end is None or end is None else max(leader_end - end, 0)


def lag_text(lags: Iterable[int | None]) -> str:
    """Return the lags of replicas: "0,0,12"."""
    return ",".join(UNKNOWN_LAG if lag is None else str(lag) for lag in lags)


# The reassignments in progress: which replicas partitions gain and lose (KIP-455).

# A controller may have to be elected, after the session of the last one has expired.
RETRY_FOR_S = 60.0
NO_CONTROLLER = "the cluster has no controller"
# What can do without it does not wait for longer.
SOON_S = 5.0


class ReplicaChanges(NamedTuple):
    """Broker ids."""

    adding: list[int]
    removing: list[int]


NO_REASSIGNMENT = ReplicaChanges([], [])


def reassignments(client: ClusterClient) -> Mapping[Partition, ReplicaChanges]:
    """Return the partitions of the cluster that are being reassigned. Tries again while there is no controller.

    Raises CliError, and the errors of clients.
    """
    retries = Retries(client.on_wait, RETRY_FOR_S)
    while True:
        try:
            response = _list_reassignments(client, None)
            if response.error_code not in CONTROLLER_ERRORS or not retries.again(NO_CONTROLLER):
                return _replica_changes(response)
        except CLIENT_ERRORS as error:
            if not retries.again(error):
                raise


def reassignments_if_known(client: ClusterClient) -> Mapping[Partition, ReplicaChanges]:
    """Return the partitions that are being reassigned; none, and print a note, if no controller says so soon."""
    try:
        return _replica_changes(_list_reassignments(client, SOON_S))
    except (*CLIENT_ERRORS, CliError):
        print_note("no controller responds: it is not known which replicas are being added or removed")
        return {}


def cancel_reassignments(client: ClusterClient, partitions: Iterable[Partition]) -> list[str]:
    """Cancel reassignments, and return the errors. It is no error if a reassignment has ended in the meantime."""
    topics = [
        ReassignableTopic(name=topic, partitions=[ReassignablePartition(partition_index=index) for index in indexes])
        for topic, indexes in by_topic(sorted(partitions)).items()
    ]
    request = AlterPartitionReassignmentsRequest(timeout_ms=REQUEST_TIMEOUT_MS, topics=topics)
    response = client.request(request, AlterPartitionReassignmentsResponse)
    raise_error(response.error_code, response.error_message)
    return [
        f"{topic.name}-{row.partition_index}: {error_code_text(row.error_code, row.error_message)}"
        for topic in response.responses
        for row in topic.partitions
        if row.error_code not in (ErrorCode.NONE, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS)
    ]


def _list_reassignments(client: ClusterClient, timeout_s: float | None) -> ListPartitionReassignmentsResponse:
    """Send the request to any broker, which forwards it."""
    request = ListPartitionReassignmentsRequest(topics=None)
    return client.request(request, ListPartitionReassignmentsResponse, timeout_s=timeout_s)


def _replica_changes(response: ListPartitionReassignmentsResponse) -> dict[Partition, ReplicaChanges]:
    raise_error(response.error_code, response.error_message)
    return {
        (topic.name, row.partition_index): ReplicaChanges(row.adding_replicas, row.removing_replicas)
        for topic in response.topics
        for row in topic.partitions
    }
