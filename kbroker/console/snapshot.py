"""Topics and groups of a cluster with their offsets, in few requests for each broker."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from kbroker.cli.cluster.cluster_state import describe_log_dirs
from kbroker.client.admin import EARLIEST, LATEST, MetadataTopic, chunks, describe_topics, offsets_at_brokers
from kbroker.client.cluster import ClusterClient
from kbroker.client.groups import FIRST_WITH_GROUPS, committed_offsets
from kbroker.client.requests import BrokerError, Partition
from protocol.apis import ApiKey
from protocol.messages.k09_offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchResponse
from protocol.messages.k15_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse

# Of a broker that does not respond, the pages show nothing.
TIMEOUT_S = 5.0
# Per request: other clients of the broker wait for no longer than it takes.
MAX_GROUPS = 25
SHARE = "share"

Offsets = Mapping[Partition, int]


class GroupOffsets(NamedTuple):
    """A group, and its committed offsets: none of a share group, or if it may not be described."""

    group: ListedGroup
    committed: Offsets


class ClusterSnapshot(NamedTuple):
    """Topics by name, offsets and sizes (bytes of the leaders' logs) by partition, groups by id.

    Partitions whose leader does not respond are missing in the mappings.
    """

    topics: Mapping[str, MetadataTopic]
    begins: Offsets
    ends: Offsets
    sizes: Offsets
    groups: Mapping[str, GroupOffsets]

    def end(self, topic: str) -> int:
        """Return the sum of a topic's log end offsets."""
        return sum(self.ends.get(partition, 0) for partition in self.partitions(topic))

    def records(self, topic: str) -> int:
        """Return the number of offsets between begin and end. Compaction and transactions leave gaps."""
        return sum(
            max(0, self.ends[partition] - self.begins.get(partition, 0))
            for partition in self.partitions(topic)
            if partition in self.ends
        )

    def size(self, topic: str) -> int | None:
        sizes = [self.sizes[partition] for partition in self.partitions(topic) if partition in self.sizes]
        return sum(sizes) if sizes else None

    def partitions(self, topic: str) -> list[Partition]:
        return [(topic, row.partition_index) for row in self.topics[topic].partitions]

    def lag(self, group: str, topic: str | None = None) -> int | None:
        """Return the lag of a group, in one topic or in all; None if it has committed nothing there."""
        lags = [
            max(0, self.ends[partition] - offset)
            for partition, offset in self.groups[group].committed.items()
            if partition in self.ends and topic in (None, partition[0])
        ]
        return sum(lags) if lags else None

    def readers(self) -> dict[str, list[str]]:
        """Return the groups that have committed offsets, by topic."""
        found: dict[str, set[str]] = {}
        for group_id, group in self.groups.items():
            for topic, _ in group.committed:
                found.setdefault(topic, set()).add(group_id)
        return {topic: sorted(groups) for topic, groups in found.items()}


def read_snapshot(cluster: ClusterClient) -> ClusterSnapshot:
    """Read everything. Raises BrokerUnreachable if no broker responds."""
    topics = {topic.name: topic for topic in describe_topics(cluster)}
    leaders = {
        (topic.name, row.partition_index): row.leader_id for topic in topics.values() for row in topic.partitions
    }
    by_leader: dict[int, list[Partition]] = {}
    for partition, leader in leaders.items():
        if leader >= 0:
            by_leader.setdefault(leader, []).append(partition)
    brokers = cluster.broker_ids()
    sizes = {
        partition: size
        for broker, log_dirs in describe_log_dirs(cluster, brokers).items()
        for partition, size in log_dirs.sizes.items()
        if leaders.get(partition) == broker
    }
    return ClusterSnapshot(
        topics, _offsets(cluster, by_leader, EARLIEST), _offsets(cluster, by_leader, LATEST), sizes,
        {group.group.group_id: group for group in _read_groups(cluster, brokers)},
    )  # fmt: skip


def _offsets(cluster: ClusterClient, by_leader: Mapping[int, Sequence[Partition]], timestamp: int) -> Offsets:
    return {at: offset for (_, at), offset in offsets_at_brokers(cluster, by_leader, timestamp).items()}


def _read_groups(cluster: ClusterClient, brokers: Collection[int]) -> Iterator[GroupOffsets]:
    """Yield the groups of all brokers. The broker that lists a group is its coordinator."""
    listed = cluster.request_all([(broker, ListGroupsRequest()) for broker in brokers], ListGroupsResponse, TIMEOUT_S)
    groups = {broker: {group.group_id: group for group in response.groups} for broker, response in listed}
    if cluster.version(ApiKey.OFFSET_FETCH) < FIRST_WITH_GROUPS:
        yield from (_read_one(cluster, group) for of_broker in groups.values() for group in of_broker.values())
        return
    requests = [
        (broker, OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=name, topics=None) for name in names]))
        for broker, of_broker in groups.items()
        for names in chunks([name for name, group in of_broker.items() if group.group_type != SHARE], MAX_GROUPS)
    ]
    committed: dict[str, Offsets] = {}
    for _, response in cluster.request_all(requests, OffsetFetchResponse, TIMEOUT_S):
        for group in response.groups:
            committed[group.group_id] = {
                (topic.name, row.partition_index): row.committed_offset
                for topic in group.topics
                for row in topic.partitions
                if row.committed_offset >= 0
            }
    for of_broker in groups.values():
        yield from (GroupOffsets(group, committed.get(name, {})) for name, group in of_broker.items())


def _read_one(cluster: ClusterClient, group: ListedGroup) -> GroupOffsets:
    """Of brokers before Kafka 3.0."""
    try:
        committed: Offsets = dict(committed_offsets(cluster, group.group_id).items())
        return GroupOffsets(group, committed)
    except BrokerError:
        return GroupOffsets(group, {})
