"""The description of a streams group, as StreamsGroupDescribe returns it (pure)."""

from collections.abc import Mapping, Sequence

from kbroker.coordinator.group.streams.records import task_structs
from kbroker.coordinator.group.streams.streams_group import NO_OFFSETS, StreamsGroup
from kbroker.coordinator.group.streams.streams_group_member import AssignedTasks, StreamsGroupMember
from kbroker.coordinator.group.streams.tasks import TaskId, Tasks, grouped
from kbroker.coordinator.group.streams.topology import InternalTopic
from kbroker.runtime.turns import paced
from protocol.messages.k88_streams_groups import (
    DescribedStreamsGroup,
    DescribedStreamsGroupMember,
    StreamsAssignment,
    StreamsKeyValue,
    StreamsSubtopology,
    StreamsTaskOffset,
    StreamsTopicInfo,
    StreamsTopology,
)


def describe(group: StreamsGroup, assignor: str) -> DescribedStreamsGroup:
    """Return the group with its topology and its members."""
    return DescribedStreamsGroup(
        group_id=group.group_id,
        group_state=group.state_name,
        group_epoch=group.group_epoch,
        assignment_epoch=group.assignment_epoch,
        topology=_topology(group),
        members=[_describe_member(group, member) for member in paced(list(group.members.values()))],
        assignor_name=assignor,
    )


def _topology(group: StreamsGroup) -> StreamsTopology | None:
    """Return the topology, with the numbers of partitions that follow from its topics if they fit it."""
    topology, configured = group.topology, group.configured
    if topology is None:
        return None
    if configured is not None and configured.problem is None and configured.subtopologies is not None:
        subtopologies = [
            StreamsSubtopology(
                subtopology_id=subtopology_id,
                source_topics=sorted(each.source_topics),
                repartition_sink_topics=sorted(each.repartition_sinks),
                state_changelog_topics=_internal_topics(each.changelogs),
                repartition_source_topics=_internal_topics(each.repartition_sources),
            )
            for subtopology_id, each in configured.subtopologies.items()
        ]
    else:
        subtopologies = [
            StreamsSubtopology(
                subtopology_id=each.subtopology_id,
                source_topics=sorted(each.source_topics),
                repartition_sink_topics=sorted(each.repartition_sink_topics),
                state_changelog_topics=each.state_changelog_topics,
                repartition_source_topics=each.repartition_source_topics,
            )
            for each in topology.subtopologies
        ]
    return StreamsTopology(epoch=topology.epoch, subtopologies=subtopologies)


def _internal_topics(topics: Sequence[InternalTopic]) -> list[StreamsTopicInfo]:
    return [
        StreamsTopicInfo(
            name=topic.name,
            partitions=topic.partition_count,
            replication_factor=topic.replication_factor,
            topic_configs=[StreamsKeyValue(key=key, value=value) for key, value in topic.configs],
        )
        for topic in topics
    ]


def _describe_member(group: StreamsGroup, member: StreamsGroupMember) -> DescribedStreamsGroupMember:
    offsets = group.task_offsets.get(member.member_id, NO_OFFSETS)
    return DescribedStreamsGroupMember(
        member_id=member.member_id,
        member_epoch=member.epoch,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        topology_epoch=member.topology_epoch,
        process_id=member.process_id,
        user_endpoint=None if member.endpoint is None else member.endpoint.struct,
        client_tags=member.tag_structs(),
        task_offsets=_offsets(offsets.offsets),
        task_end_offsets=_offsets(offsets.end_offsets),
        assignment=_assigned(member.assigned),
        target_assignment=_target(group.target_of(member)),
    )


def _offsets(offsets: Mapping[TaskId, int]) -> list[StreamsTaskOffset]:
    return [
        StreamsTaskOffset(subtopology_id=task.subtopology_id, partition=task.partition, offset=offset)
        for task, offset in sorted(offsets.items())
    ]


def _assigned(tasks: AssignedTasks) -> StreamsAssignment:
    return _target(Tasks(grouped(tasks.active), grouped(tasks.standby), grouped(tasks.warmup)))


def _target(tasks: Tasks) -> StreamsAssignment:
    return StreamsAssignment(
        active_tasks=task_structs(tasks.active),
        standby_tasks=task_structs(tasks.standby),
        warmup_tasks=task_structs(tasks.warmup),
    )
