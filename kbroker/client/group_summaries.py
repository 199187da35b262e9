"""All groups of a cluster with their members and lag, in a few requests to each broker.

A broker lists the groups that it coordinates, so no coordinator has to be found. What one does not respond to in time
is missing: functions raise BrokerUnreachable only if no broker responds.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from kbroker.client.admin import LATEST, chunks, describe_topics, offsets_at_brokers
from kbroker.client.cluster import ClusterClient
from kbroker.client.group_descriptions import CLASSIC, CONSUMER, SHARE, STREAMS
from kbroker.client.groups import FIRST_WITH_GROUPS, committed_offsets
from kbroker.client.requests import Partition
from kbroker.common import TopicPartition
from protocol.apis import ApiKey
from protocol.messages.k09_offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchResponse
from protocol.messages.k15_groups import (
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    ListedGroup,
    ListGroupsRequest,
    ListGroupsResponse,
)
from protocol.messages.k68_consumer_groups import ConsumerGroupDescribeRequest, ConsumerGroupDescribeResponse
from protocol.messages.k76_share_groups import ShareGroupDescribeRequest, ShareGroupDescribeResponse
from protocol.messages.k88_streams_groups import StreamsGroupDescribeRequest, StreamsGroupDescribeResponse
from protocol.messages.k90_share_group_offsets import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsResponse,
)
from protocol.schema.message import Message

# Per request: other clients of the broker wait for no longer than it takes.
MAX_GROUPS = 25
TIMEOUT_S = 5.0
# The request that describes groups of a type, and its response.
DESCRIPTIONS: Mapping[str, tuple[Callable[[list[str]], Message], type[Any]]] = {
    CLASSIC: (lambda ids: DescribeGroupsRequest(groups=ids), DescribeGroupsResponse),
    CONSUMER: (lambda ids: ConsumerGroupDescribeRequest(group_ids=ids), ConsumerGroupDescribeResponse),
    SHARE: (lambda ids: ShareGroupDescribeRequest(group_ids=ids), ShareGroupDescribeResponse),
    STREAMS: (lambda ids: StreamsGroupDescribeRequest(group_ids=ids), StreamsGroupDescribeResponse),
}
# By broker.
Coordinated = Mapping[int, Sequence[ListedGroup]]


class GroupSummary(NamedTuple):
    """A group. `members`: None if the coordinator did not say.

    `lags`: the records that are left to read, by partition with a committed offset (of a share group a start offset);
    None where the partition has no leader, or does not exist any more.
    """

    group_id: str
    type: str
    state: str
    members: int | None
    lags: Mapping[TopicPartition, int | None]

    @property
    def lag(self) -> int | None:
        """The lag of all partitions together, None if none is known."""
        known = [lag for lag in self.lags.values() if lag is not None]
        return sum(known) if known else None


def summarize_groups(cluster: ClusterClient) -> list[GroupSummary]:
    """Return all groups, those with the largest lag first."""
    coordinated = coordinated_groups(cluster)
    members = _member_counts(cluster, coordinated)
    commits = commits_of(cluster, coordinated)
    ends = log_ends(cluster, {partition for offsets in commits.values() for partition in offsets})
    lags: dict[str, dict[TopicPartition, int | None]] = {
        group: {tp: max(0, ends[tp] - offset) if tp in ends else None for tp, offset in offsets.items()}
        for group, offsets in commits.items()
    }
    lags |= _share_lags(cluster, coordinated)
    summaries = [
        GroupSummary(
            group.group_id, _type(group), group.group_state, members.get(group.group_id), lags.get(group.group_id, {})
        )
        for groups in coordinated.values()
        for group in groups
    ]
    return sorted(summaries, key=lambda group: (-(group.lag or 0), group.group_id))


def coordinated_groups(cluster: ClusterClient) -> dict[int, list[ListedGroup]]:
    """Return the groups of each broker, which coordinates them."""
    requests = [(broker, ListGroupsRequest()) for broker in cluster.broker_ids()]
    return {
        broker: response.groups for broker, response in cluster.request_all(requests, ListGroupsResponse, TIMEOUT_S)
    }


def _type(group: ListedGroup) -> str:
    """Brokers before Kafka 3.8 name no type."""
    return group.group_type.lower() or CLASSIC


def _chunks(coordinated: Coordinated, kinds: Collection[str]) -> Iterator[tuple[int, list[str]]]:
    """Yield each broker with ids of its groups of some types, as many as a request may have."""
    for broker, groups in coordinated.items():
        for some in chunks([group.group_id for group in groups if _type(group) in kinds], MAX_GROUPS):
            yield broker, list(some)


def _member_counts(cluster: ClusterClient, coordinated: Coordinated) -> dict[str, int]:
    counts = {}
    for kind, (request, response_type) in DESCRIPTIONS.items():
        requests = [(broker, request(ids)) for broker, ids in _chunks(coordinated, (kind,))]
        for _, response in cluster.request_all(requests, response_type, TIMEOUT_S):
            counts.update({group.group_id: len(group.members) for group in response.groups if not group.error_code})
    return counts


def commits_of(cluster: ClusterClient, coordinated: Coordinated) -> dict[str, dict[TopicPartition, int]]:
    """Return the committed offsets of all groups but share groups, which have none."""
    chunked = list(_chunks(coordinated, DESCRIPTIONS.keys() - {SHARE}))
    if cluster.version(ApiKey.OFFSET_FETCH) < FIRST_WITH_GROUPS:
        return {group: committed_offsets(cluster, group) for _, ids in chunked for group in ids}
    requests = [
        (broker, OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=id, topics=None) for id in ids]))
        for broker, ids in chunked
    ]
    return {
        group.group_id: {
            TopicPartition(topic.name, row.partition_index): row.committed_offset
            for topic in group.topics
            for row in topic.partitions
            if row.committed_offset >= 0 and not row.error_code
        }
        for _, response in cluster.request_all(requests, OffsetFetchResponse, TIMEOUT_S)
        for group in response.groups
    }


def log_ends(cluster: ClusterClient, partitions: Collection[Partition]) -> dict[Partition, int]:
    """Return the log end offset of each partition that has a leader which responds."""
    leaders: dict[int, list[Partition]] = {}
    for topic in describe_topics(cluster, sorted({topic for topic, _ in partitions})) if partitions else ():
        for row in topic.partitions:
            if row.leader_id >= 0 and (topic.name, row.partition_index) in partitions:
                leaders.setdefault(row.leader_id, []).append((topic.name, row.partition_index))
    return {partition: offset for (_, partition), offset in offsets_at_brokers(cluster, leaders, LATEST).items()}


def _share_lags(cluster: ClusterClient, coordinated: Coordinated) -> dict[str, dict[TopicPartition, int | None]]:
    requests = [
        (
            broker,
            DescribeShareGroupOffsetsRequest(
                groups=[DescribeShareGroupOffsetsRequestGroup(group_id=id, topics=None) for id in ids]
            ),
        )
        for broker, ids in _chunks(coordinated, (SHARE,))
    ]
    return {
        group.group_id: {
            TopicPartition(topic.topic_name, row.partition_index): row.lag if row.lag >= 0 else None
            for topic in group.topics
            for row in topic.partitions
            if row.start_offset >= 0 and not row.error_code
        }
        for _, response in cluster.request_all(requests, DescribeShareGroupOffsetsResponse, TIMEOUT_S)
        for group in response.groups
    }
