"""All groups of a cluster with their members and lag, in a few requests to each broker.

A broker lists the groups that it coordinates, so no coordinator has to be found. What one does not respond to in time
is missing. Functions raise BrokerUnreachable and BrokerError.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from kbroker.client.admin import chunks
from kbroker.client.cluster import ClusterClient
from kbroker.client.group_descriptions import CLASSIC, CONSUMER, SHARE, STREAMS
from kbroker.client.groups import (
    FIRST_WITH_GROUPS,
    committed_offsets,
    described_share_offsets,
    fetched_offsets,
    groups_by_coordinator,
)
from kbroker.client.offsets import latest_offsets
from kbroker.common import TopicPartition
from protocol.apis import ApiKey
from protocol.messages.k09_offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchResponse
from protocol.messages.k15_groups import DescribeGroupsRequest, DescribeGroupsResponse, ListedGroup
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
# A coordinator that does not respond within this time is probably down.
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
    """A group. None stands for what its coordinator does not report.

    `lags`: the records that are left to read, by partition with a committed offset (of a share group a start offset);
    None where the partition has no leader, or does not exist any more.
    """

    group_id: str
    type: str | None
    state: str | None
    protocol: str | None
    members: int | None
    lags: Mapping[TopicPartition, int | None]

    @property
    def lag(self) -> int | None:
        """The lag of all partitions together, None if none is known."""
        known = [lag for lag in self.lags.values() if lag is not None]
        return sum(known) if known else None


def summarize_groups(cluster: ClusterClient) -> list[GroupSummary]:
    """Return all groups, those with the largest lag first."""
    coordinated = groups_by_coordinator(cluster)
    members = _member_counts(cluster, coordinated)
    lags = _lags(cluster, coordinated) | _share_lags(cluster, coordinated)
    summaries = [
        GroupSummary(
            group.group_id, group.group_type.lower() or None, group.group_state or None, group.protocol_type or None,
            members.get(group.group_id), lags.get(group.group_id, {}),
        )
        for groups in coordinated.values()
        for group in groups
    ]  # fmt: skip
    return sorted(summaries, key=lambda group: (group.lag is None, -(group.lag or 0), group.group_id))


def _chunks(coordinated: Coordinated, kinds: Collection[str]) -> Iterator[tuple[int, list[str]]]:
    """Yield each broker with ids of its groups of some types, as many as a request may have."""
    for broker, groups in coordinated.items():
        # Brokers before Kafka 3.8 name no type.
        ids = [group.group_id for group in groups if (group.group_type.lower() or CLASSIC) in kinds]
        for some in chunks(ids, MAX_GROUPS):
            yield broker, list(some)


def _member_counts(cluster: ClusterClient, coordinated: Coordinated) -> dict[str, int]:
    counts = {}
    for kind, (request, response_type) in DESCRIPTIONS.items():
        requests = [(broker, request(ids)) for broker, ids in _chunks(coordinated, (kind,))]
        for _, response in cluster.request_all(requests, response_type, TIMEOUT_S):
            counts.update({group.group_id: len(group.members) for group in response.groups if not group.error_code})
    return counts


def _lags(cluster: ClusterClient, coordinated: Coordinated) -> dict[str, dict[TopicPartition, int | None]]:
    """Return the lags of all groups but share groups, which have no committed offsets."""
    chunked = list(_chunks(coordinated, DESCRIPTIONS.keys() - {SHARE}))
    if cluster.version(ApiKey.OFFSET_FETCH) < FIRST_WITH_GROUPS:
        commits = {group: committed_offsets(cluster, group) for _, ids in chunked for group in ids}
    else:
        requests = [
            (broker, OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=id, topics=None) for id in ids]))
            for broker, ids in chunked
        ]
        commits = {
            group.group_id: fetched_offsets(group.group_id, group)
            for _, response in cluster.request_all(requests, OffsetFetchResponse, TIMEOUT_S)
            for group in response.groups
            if not group.error_code
        }
    ends = latest_offsets(cluster, {partition for offsets in commits.values() for partition in offsets})
    return {
        group: {tp: max(0, ends[tp] - offset) if tp in ends else None for tp, offset in offsets.items()}
        for group, offsets in commits.items()
    }


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
        group.group_id: {tp: lag for tp, (_, lag) in described_share_offsets(group).items()}
        for _, response in cluster.request_all(requests, DescribeShareGroupOffsetsResponse, TIMEOUT_S)
        for group in response.groups
        if not group.error_code
    }
