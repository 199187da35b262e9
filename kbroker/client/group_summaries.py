"""All groups of a cluster with their members and lag, in a few requests to each broker.

A broker lists the groups that it coordinates, so no coordinator has to be found. What one does not respond to in time
is missing: functions raise BrokerUnreachable only if no broker responds.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, NamedTuple

from kbroker.client.admin import LATEST, chunks, describe_topics, offsets_at_brokers
from kbroker.client.cluster import ClusterClient
from kbroker.client.group_descriptions import CLASSIC, CONSUMER, SHARE, STREAMS
from kbroker.client.groups import FIRST_WITH_GROUPS, committed_offsets
from kbroker.client.requests import Partition
from kbroker.common import TopicPartition
from protocol.apis import ApiKey
from protocol.messages.k09_offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchResponse
from protocol.messages.k15_groups import DescribeGroupsRequest, DescribeGroupsResponse, ListGroupsRequest
from protocol.messages.k15_groups import ListGroupsResponse as Listed
from protocol.messages.k68_consumer_groups import ConsumerGroupDescribeRequest, ConsumerGroupDescribeResponse
from protocol.messages.k76_share_groups import ShareGroupDescribeRequest, ShareGroupDescribeResponse
from protocol.messages.k88_streams_groups import StreamsGroupDescribeRequest, StreamsGroupDescribeResponse
from protocol.messages.k90_share_group_offsets import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsResponse,
)
from protocol.schema.message import Message

MAX_GROUPS = 200  # per request
TIMEOUT_S = 5.0
# The request that describes groups of a type, and its response.
DESCRIPTIONS: Mapping[str, tuple[Callable[[list[str]], Message], type[Any]]] = {
    CLASSIC: (lambda ids: DescribeGroupsRequest(groups=ids), DescribeGroupsResponse),
    CONSUMER: (lambda ids: ConsumerGroupDescribeRequest(group_ids=ids), ConsumerGroupDescribeResponse),
    SHARE: (lambda ids: ShareGroupDescribeRequest(group_ids=ids), ShareGroupDescribeResponse),
    STREAMS: (lambda ids: StreamsGroupDescribeRequest(group_ids=ids), StreamsGroupDescribeResponse),
}


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
    states: dict[str, tuple[str, str]] = {}
    coordinated: dict[int, dict[str, list[str]]] = {}
    listing = [(broker, ListGroupsRequest()) for broker in cluster.broker_ids()]
    for broker, response in cluster.request_all(listing, Listed, TIMEOUT_S):
        for group in response.groups:
            # Brokers before Kafka 3.8 name no type.
            kind = group.group_type.lower() or CLASSIC
            states[group.group_id] = kind, group.group_state
            coordinated.setdefault(broker, {}).setdefault(kind, []).append(group.group_id)
    members = _member_counts(cluster, coordinated)
    lags = _lags_of_commits(cluster, coordinated) | _share_lags(cluster, coordinated)
    summaries = [
        GroupSummary(group, kind, state, members.get(group), lags.get(group, {}))
        for group, (kind, state) in states.items()
    ]
    return sorted(summaries, key=lambda group: (-(group.lag or 0), group.group_id))


def _member_counts(cluster: ClusterClient, coordinated: Mapping[int, Mapping[str, list[str]]]) -> dict[str, int]:
    counts = {}
    for kind, (request, response_type) in DESCRIPTIONS.items():
        requests = [
            (broker, request(list(ids)))
            for broker, by_kind in coordinated.items()
            for ids in chunks(by_kind.get(kind, ()), MAX_GROUPS)
        ]
        for _, response in cluster.request_all(requests, response_type, TIMEOUT_S):
            counts.update({group.group_id: len(group.members) for group in response.groups if not group.error_code})
    return counts


Lags = dict[str, dict[TopicPartition, int | None]]


def _lags_of_commits(cluster: ClusterClient, coordinated: Mapping[int, Mapping[str, list[str]]]) -> Lags:
    by_broker = {
        broker: [group for kind, ids in by_kind.items() if kind != SHARE for group in ids]
        for broker, by_kind in coordinated.items()
    }
    committed: dict[str, dict[TopicPartition, int]] = {}
    if cluster.version(ApiKey.OFFSET_FETCH) < FIRST_WITH_GROUPS:
        committed = {group: committed_offsets(cluster, group) for ids in by_broker.values() for group in ids}
    else:
        requests = [
            (broker, OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=id, topics=None) for id in some]))
            for broker, ids in by_broker.items()
            for some in chunks(ids, MAX_GROUPS)
        ]
        for _, response in cluster.request_all(requests, OffsetFetchResponse, TIMEOUT_S):
            for group in response.groups:
                committed[group.group_id] = {
                    TopicPartition(topic.name, row.partition_index): row.committed_offset
                    for topic in group.topics
                    for row in topic.partitions
                    if row.committed_offset >= 0 and not row.error_code
                }
    ends = log_ends(cluster, {partition for offsets in committed.values() for partition in offsets})
    return {
        group: {tp: max(0, ends[tp] - offset) if tp in ends else None for tp, offset in offsets.items()}
        for group, offsets in committed.items()
    }


def log_ends(cluster: ClusterClient, partitions: Collection[Partition]) -> dict[Partition, int]:
    """Return the log end offset of each partition that has a leader which responds."""
    leaders: dict[int, list[Partition]] = {}
    for topic in describe_topics(cluster, sorted({topic for topic, _ in partitions})) if partitions else ():
        for row in topic.partitions:
            if row.leader_id >= 0 and (topic.name, row.partition_index) in partitions:
                leaders.setdefault(row.leader_id, []).append((topic.name, row.partition_index))
    return {partition: offset for (_, partition), offset in offsets_at_brokers(cluster, leaders, LATEST).items()}


def _share_lags(cluster: ClusterClient, coordinated: Mapping[int, Mapping[str, list[str]]]) -> Lags:
    def groups(ids: Iterable[str]) -> list[DescribeShareGroupOffsetsRequestGroup]:
        return [DescribeShareGroupOffsetsRequestGroup(group_id=id, topics=None) for id in ids]

    requests = [
        (broker, DescribeShareGroupOffsetsRequest(groups=groups(some)))
        for broker, by_kind in coordinated.items()
        for some in chunks(by_kind.get(SHARE, ()), MAX_GROUPS)
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
