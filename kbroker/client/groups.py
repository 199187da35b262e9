"""What the command line and the data pipeline ask of group coordinators.

Functions raise BrokerUnreachable, and BrokerError for an error of a whole response.
"""

from collections.abc import Iterable, Mapping

from kbroker.client.cluster import ClusterClient
from kbroker.client.requests import Partition, PartitionKey, by_topic, check
from kbroker.common import TopicPartition
from protocol.apis import ApiKey
from protocol.messages.k08_offset_commits import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from protocol.messages.k09_offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
)
from protocol.messages.k15_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse
from protocol.messages.k42_delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from protocol.messages.k47_offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
)
from protocol.messages.k90_share_group_offsets import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsRequestPartition,
    AlterShareGroupOffsetsRequestTopic,
    AlterShareGroupOffsetsResponse,
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsRequestTopic,
    DeleteShareGroupOffsetsResponse,
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsResponse,
    DescribeShareGroupOffsetsResponseGroup,
)

# OffsetFetch: the first version with a list of groups.
FIRST_WITH_GROUPS = 8


def groups_by_coordinator(cluster: ClusterClient) -> dict[int, list[ListedGroup]]:
    """Return the groups of each broker."""
    groups = {}
    for broker in cluster.broker_ids():
        response = cluster.request(ListGroupsRequest(), ListGroupsResponse, broker)
        check(response.error_code, f"the groups of broker {broker}")
        groups[broker] = response.groups
    return groups


def list_groups(cluster: ClusterClient) -> list[ListedGroup]:
    """Return the groups of all brokers."""
    return [group for groups in groups_by_coordinator(cluster).values() for group in groups]


def committed_offsets(cluster: ClusterClient, group: str) -> dict[TopicPartition, int]:
    """Return all committed offsets of a group."""
    if cluster.version(ApiKey.OFFSET_FETCH) >= FIRST_WITH_GROUPS:
        request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=group, topics=None)])
    else:
        request = OffsetFetchRequest(group_id=group, topics=None)

    def fetched(response: OffsetFetchResponse) -> OffsetFetchResponse | OffsetFetchResponseGroup:
        return response.groups[0] if response.groups else response

    response = cluster.coordinated(group, request, OffsetFetchResponse, lambda response: fetched(response).error_code)
    return fetched_offsets(group, fetched(response))


def fetched_offsets(group: str, found: OffsetFetchResponse | OffsetFetchResponseGroup) -> dict[TopicPartition, int]:
    """Return the committed offsets of a group in a response. Raises BrokerError."""
    check(found.error_code, f"group {group}")
    offsets = {}
    for topic in found.topics:
        for row in topic.partitions:
            partition = TopicPartition(topic.name, row.partition_index)
            check(row.error_code, f"group {group}, {partition}")
            if row.committed_offset >= 0:
                offsets[partition] = row.committed_offset
    return offsets


def commit_offsets(
    cluster: ClusterClient, group: str, offsets: Mapping[PartitionKey, int], generation: int = -1, member_id: str = ""
) -> dict[TopicPartition, int]:
    """Commit offsets, by default of a group without members, and return the error codes by partition, 0 for success."""
    rows: dict[str, list[OffsetCommitRequestPartition]] = {}
    for (topic, index), offset in offsets.items():
        row = OffsetCommitRequestPartition(partition_index=index, committed_offset=offset, committed_metadata="")
        rows.setdefault(topic, []).append(row)
    topics = [OffsetCommitRequestTopic(name=topic, partitions=partitions) for topic, partitions in rows.items()]
    request = OffsetCommitRequest(
        group_id=group, generation_id_or_member_epoch=generation, member_id=member_id, topics=topics
    )

    def codes(response: OffsetCommitResponse) -> dict[TopicPartition, int]:
        return {
            TopicPartition(topic.name, row.partition_index): row.error_code
            for topic in response.topics
            for row in topic.partitions
        }

    def first_code(response: OffsetCommitResponse) -> int:
        return next(iter(codes(response).values()), 0)

    return codes(cluster.coordinated(group, request, OffsetCommitResponse, first_code))


def delete_group(cluster: ClusterClient, group: str) -> int:
    """Delete a group without members, and return the error code, 0 for success."""
    request = DeleteGroupsRequest(groups_names=[group])

    def error_code(response: DeleteGroupsResponse) -> int:
        return response.results[0].error_code

    return error_code(cluster.coordinated(group, request, DeleteGroupsResponse, error_code))


def delete_offsets(cluster: ClusterClient, group: str, partitions: Iterable[Partition]) -> dict[TopicPartition, int]:
    """Delete committed offsets of a group, and return the error codes by partition, 0 for success."""
    rows = [
        OffsetDeleteRequestTopic(
            name=topic, partitions=[OffsetDeleteRequestPartition(partition_index=index) for index in indexes]
        )
        for topic, indexes in by_topic(partitions).items()
    ]
    request = OffsetDeleteRequest(group_id=group, topics=rows)
    response = cluster.coordinated(group, request, OffsetDeleteResponse, lambda response: response.error_code)
    check(response.error_code, f"group {group}")
    return {
        TopicPartition(topic.name, row.partition_index): row.error_code
        for topic in response.topics
        for row in topic.partitions
    }


# Share groups have start offsets instead: all records below have been acknowledged or archived.


def share_offsets(cluster: ClusterClient, group: str) -> dict[TopicPartition, tuple[int, int | None]]:
    """Return the start offset of each partition of a share group that has one, and its lag, None if it is unknown."""
    request = DescribeShareGroupOffsetsRequest(
        groups=[DescribeShareGroupOffsetsRequestGroup(group_id=group, topics=None)]
    )
    response = cluster.coordinated(
        group, request, DescribeShareGroupOffsetsResponse, lambda found: found.groups[0].error_code
    )
    return described_share_offsets(response.groups[0])


def described_share_offsets(
    found: DescribeShareGroupOffsetsResponseGroup,
) -> dict[TopicPartition, tuple[int, int | None]]:
    """Return the start offsets and lags of a share group in a response. Raises BrokerError."""
    group = found.group_id
    check(found.error_code, f"group {group}", found.error_message)
    offsets = {}
    for topic in found.topics:
        for row in topic.partitions:
            partition = TopicPartition(topic.topic_name, row.partition_index)
            check(row.error_code, f"group {group}, {partition}", row.error_message)
            if row.start_offset >= 0:
                offsets[partition] = row.start_offset, row.lag if row.lag >= 0 else None
    return offsets


def alter_share_offsets(
    cluster: ClusterClient, group: str, offsets: Mapping[PartitionKey, int]
) -> dict[TopicPartition, int]:
    """Set start offsets of a share group without members; return the error codes by partition, 0 for success."""
    rows: dict[str, list[AlterShareGroupOffsetsRequestPartition]] = {}
    for (topic, index), offset in offsets.items():
        row = AlterShareGroupOffsetsRequestPartition(partition_index=index, start_offset=offset)
        rows.setdefault(topic, []).append(row)
    topics = [AlterShareGroupOffsetsRequestTopic(topic_name=topic, partitions=row) for topic, row in rows.items()]
    request = AlterShareGroupOffsetsRequest(group_id=group, topics=topics)
    response = cluster.coordinated(group, request, AlterShareGroupOffsetsResponse, lambda found: found.error_code)
    check(response.error_code, f"group {group}", response.error_message)
    return {
        TopicPartition(topic.topic_name, row.partition_index): row.error_code
        for topic in response.responses
        for row in topic.partitions
    }


def delete_share_offsets(cluster: ClusterClient, group: str, topics: Iterable[str]) -> dict[str, int]:
    """Delete the state of a share group for topics; return the error codes by topic, 0 for success."""
    rows = [DeleteShareGroupOffsetsRequestTopic(topic_name=topic) for topic in topics]
    request = DeleteShareGroupOffsetsRequest(group_id=group, topics=rows)
    response = cluster.coordinated(group, request, DeleteShareGroupOffsetsResponse, lambda found: found.error_code)
    check(response.error_code, f"group {group}", response.error_message)
    return {topic.topic_name: topic.error_code for topic in response.responses}
