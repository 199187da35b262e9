"""Descriptions of groups of all kinds, each of which has an API of its own.

Functions raise BrokerUnreachable and BrokerError.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from kbroker.client.cluster import ClusterClient
from protocol.client import UnsupportedVersionError
from protocol.errors import ErrorCode, MalformedError
from protocol.messages.consumer_protocol import ConsumerProtocolAssignment
from protocol.messages.k15_groups import DescribedGroupMember, DescribeGroupsRequest, DescribeGroupsResponse
from protocol.messages.k68_consumer_groups import (
    ConsumerGroupDescribeAssignment,
    ConsumerGroupDescribeMember,
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DescribedConsumerGroup,
)
from protocol.messages.k76_share_groups import (
    DescribedAssignment,
    DescribedShareGroup,
    DescribedShareGroupMember,
    ShareGroupDescribeRequest,
    ShareGroupDescribeResponse,
)
from protocol.messages.k88_streams_groups import (
    DescribedStreamsGroup,
    DescribedStreamsGroupMember,
    StreamsGroupDescribeRequest,
    StreamsGroupDescribeResponse,
)
from protocol.schema.codec import decode
from protocol.schema.message import Message, message_info

CLASSIC, CONSUMER, SHARE, STREAMS = "classic", "consumer", "share", "streams"

# Partitions by topic.
Assignment = Mapping[str, list[int]]


class GroupMember(NamedTuple):
    """A member. `target`: what it will have after the rebalance in progress; None if that is its assignment.

    A member of a classic group has no epoch. One of a share group has no instance id, and no target. That of a streams
    group has tasks by their role (active, standby, warmup), and the partitions that its active tasks read.
    `is_classic`: it uses the classic protocol, as members of a consumer group may, too.
    """

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    epoch: int | None
    assignment: Assignment
    target: Assignment | None = None
    tasks: Mapping[str, list[str]] | None = None
    is_classic: bool = False


class GroupDescription(NamedTuple):
    """A group, or the error code why it cannot be described. A group that does not exist is a Dead classic group.

    `epoch`, `assignment_epoch`: None for a classic group.
    """

    group_id: str
    type: str
    state: str
    error_code: int
    error_message: str | None
    protocol: str | None
    assignor: str | None
    members: list[GroupMember]
    epoch: int | None = None
    assignment_epoch: int | None = None


def describe_group(cluster: ClusterClient, group_id: str) -> GroupDescription:
    """Describe a group of any kind."""
    for describe in (_describe_consumer, _describe_share, _describe_streams):
        try:
            description = describe(cluster, group_id)
        except UnsupportedVersionError:
            continue
        if description.error_code not in _NOT_OF_THIS_KIND:
            return description
    return _describe_classic(cluster, group_id)


def _described(cluster: ClusterClient, group_id: str, request: Message, response_type: type[Any]) -> Any:
    """Return the one group of a response."""
    return cluster.coordinated(group_id, request, response_type, lambda found: found.groups[0].error_code).groups[0]


def _describe_classic(cluster: ClusterClient, group_id: str) -> GroupDescription:
    group = _described(cluster, group_id, DescribeGroupsRequest(groups=[group_id]), DescribeGroupsResponse)
    return GroupDescription(
        group_id, CLASSIC, group.group_state, group.error_code, group.error_message, group.protocol_type or None,
        group.protocol_data or None, [classic_member(member) for member in group.members],
    )  # fmt: skip


def classic_member(member: DescribedGroupMember) -> GroupMember:
    """Return a member of a classic group. It has no assignment if that cannot be decoded."""
    host, assignment = member.client_host.removeprefix("/"), _decode_assignment(member.member_assignment)
    return GroupMember(
        member.member_id, member.group_instance_id, member.client_id, host, None, assignment, is_classic=True
    )


def _decode_assignment(data: bytes) -> Assignment:
    # The assignment begins with its version.
    version = int.from_bytes(data[:2], "big", signed=True)
    if len(data) < 2 or version < 0:
        return {}
    try:
        latest = message_info(ConsumerProtocolAssignment).max_version
        assignment = decode(ConsumerProtocolAssignment, data, min(version, latest), 2)
    except MalformedError:
        return {}
    return {topic.topic: sorted(topic.partitions) for topic in assignment.assigned_partitions}


def _describe_consumer(cluster: ClusterClient, group_id: str) -> GroupDescription:
    request = ConsumerGroupDescribeRequest(group_ids=[group_id])
    group = _described(cluster, group_id, request, ConsumerGroupDescribeResponse)
    members = [
        _member(row, row.instance_id, _partitions(row.target_assignment))._replace(is_classic=row.member_type == 0)
        for row in group.members
    ]
    return _description(group, CONSUMER, members)


def _describe_share(cluster: ClusterClient, group_id: str) -> GroupDescription:
    request = ShareGroupDescribeRequest(group_ids=[group_id])
    group = _described(cluster, group_id, request, ShareGroupDescribeResponse)
    return _description(group, SHARE, [_member(row) for row in group.members])


def _member(
    row: ConsumerGroupDescribeMember | DescribedShareGroupMember,
    instance_id: str | None = None,
    target: Assignment | None = None,
) -> GroupMember:
    host, assignment = row.client_host.removeprefix("/"), _partitions(row.assignment)
    target = None if target == assignment else target
    return GroupMember(row.member_id, instance_id, row.client_id, host, row.member_epoch, assignment, target)


def _describe_streams(cluster: ClusterClient, group_id: str) -> GroupDescription:
    request = StreamsGroupDescribeRequest(group_ids=[group_id])
    group = _described(cluster, group_id, request, StreamsGroupDescribeResponse)
    subtopologies = (group.topology.subtopologies if group.topology is not None else None) or []
    sources = {
        row.subtopology_id: [*row.source_topics, *(topic.name for topic in row.repartition_source_topics)]
        for row in subtopologies
    }
    return _description(group, STREAMS, [_streams_member(row, sources) for row in group.members])


def _streams_member(row: DescribedStreamsGroupMember, sources: Mapping[str, list[str]]) -> GroupMember:
    """`sources`: the topics that the tasks of each subtopology read."""
    active = row.assignment.active_tasks
    assignment = {
        topic: sorted(tasks.partitions) for tasks in active for topic in sources.get(tasks.subtopology_id, ())
    }
    roles = {"active": active, "standby": row.assignment.standby_tasks, "warmup": row.assignment.warmup_tasks}
    tasks = {
        role: [f"{task.subtopology_id}_{index}" for task in found for index in sorted(task.partitions)]
        for role, found in roles.items()
    }
    host = row.client_host.removeprefix("/")
    return GroupMember(
        row.member_id, row.instance_id, row.client_id, host, row.member_epoch, assignment, None, tasks, row.is_classic
    )


def _description(
    group: DescribedConsumerGroup | DescribedShareGroup | DescribedStreamsGroup, kind: str, members: list[GroupMember]
) -> GroupDescription:
    return GroupDescription(
        group.group_id, kind, group.group_state, group.error_code, group.error_message, kind,
        getattr(group, "assignor_name", None) or None, members, group.group_epoch, group.assignment_epoch,
    )  # fmt: skip


def _partitions(assignment: ConsumerGroupDescribeAssignment | DescribedAssignment) -> Assignment:
    return {topic.topic_name: sorted(topic.partitions) for topic in assignment.topic_partitions}


# The group does not exist, is of another kind, or the broker serves none of this kind.
_NOT_OF_THIS_KIND = (ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNSUPPORTED_VERSION)
