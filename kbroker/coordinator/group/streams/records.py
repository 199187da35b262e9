"""The records of streams groups, with the bytes that Apache Kafka 4.4 writes and reads."""

from collections.abc import Mapping

from kbroker.coordinator.group.modern.record_codec import GroupRecord, MemberRecord, RecordType, codec_of
from kbroker.coordinator.group.streams.tasks import TaskIds, Tasks
from protocol.messages.k88_streams_groups import StreamsKeyValue, StreamsTaskIds
from protocol.messages.streams_group_records import (
    StreamsGroupCurrentMemberAssignmentKey,
    StreamsGroupCurrentMemberAssignmentValue,
    StreamsGroupMemberMetadataKey,
    StreamsGroupMemberMetadataValue,
    StreamsGroupMetadataKey,
    StreamsGroupMetadataValue,
    StreamsGroupTargetAssignmentMemberKey,
    StreamsGroupTargetAssignmentMemberValue,
    StreamsGroupTargetAssignmentMetadataKey,
    StreamsGroupTargetAssignmentMetadataValue,
    StreamsGroupTopologyKey,
    StreamsGroupTopologyValue,
)


class StreamsGroupEpoch(GroupRecord[StreamsGroupMetadataValue]):
    """The epoch of a group, and what it was set for: topics, a topology that fits them, configs (key 17)."""


class StreamsMemberMetadata(MemberRecord[StreamsGroupMemberMetadataValue]):
    """What a member has sent (key 19)."""


class StreamsTargetEpoch(GroupRecord[StreamsGroupTargetAssignmentMetadataValue]):
    """The group epoch for which the target assignment was computed, and when, in wall clock milliseconds (key 20)."""


class StreamsTargetAssignment(MemberRecord[StreamsGroupTargetAssignmentMemberValue]):
    """The tasks that a member should have (key 21)."""


class StreamsCurrentAssignment(MemberRecord[StreamsGroupCurrentMemberAssignmentValue]):
    """The epoch of a member, and the tasks that it has (key 22)."""


class StreamsTopology(GroupRecord[StreamsGroupTopologyValue]):
    """The topology of the application (key 23)."""


StreamsGroupRecord = (
    StreamsGroupEpoch
    | StreamsMemberMetadata
    | StreamsTargetEpoch
    | StreamsTargetAssignment
    | StreamsCurrentAssignment
    | StreamsTopology
)

CODEC = codec_of(
    RecordType(StreamsGroupEpoch, StreamsGroupMetadataKey, StreamsGroupMetadataValue),
    RecordType(StreamsMemberMetadata, StreamsGroupMemberMetadataKey, StreamsGroupMemberMetadataValue),
    RecordType(StreamsTargetEpoch, StreamsGroupTargetAssignmentMetadataKey, StreamsGroupTargetAssignmentMetadataValue),
    RecordType(StreamsTargetAssignment, StreamsGroupTargetAssignmentMemberKey, StreamsGroupTargetAssignmentMemberValue),
    RecordType(
        StreamsCurrentAssignment, StreamsGroupCurrentMemberAssignmentKey, StreamsGroupCurrentMemberAssignmentValue
    ),
    RecordType(StreamsTopology, StreamsGroupTopologyKey, StreamsGroupTopologyValue),
)


def group_epoch_record(
    group_id: str, epoch: int, metadata_hash: int, validated_topology_epoch: int, configs: Mapping[str, str]
) -> StreamsGroupEpoch:
    value = StreamsGroupMetadataValue(
        epoch=epoch,
        metadata_hash=metadata_hash,
        validated_topology_epoch=validated_topology_epoch,
        last_assignment_configs=[StreamsKeyValue(key=key, value=config) for key, config in configs.items()],
    )
    return StreamsGroupEpoch(group_id, value)


def target_epoch_record(group_id: str, epoch: int, timestamp_ms: int) -> StreamsTargetEpoch:
    value = StreamsGroupTargetAssignmentMetadataValue(assignment_epoch=epoch, assignment_timestamp=timestamp_ms)
    return StreamsTargetEpoch(group_id, value)


def target_record(group_id: str, member_id: str, target: Tasks) -> StreamsTargetAssignment:
    value = StreamsGroupTargetAssignmentMemberValue(
        active_tasks=task_structs(target.active),
        standby_tasks=task_structs(target.standby),
        warmup_tasks=task_structs(target.warmup),
    )
    return StreamsTargetAssignment(group_id, member_id, value)


def task_structs(tasks: TaskIds) -> list[StreamsTaskIds]:
    return [
        StreamsTaskIds(subtopology_id=subtopology_id, partitions=list(partitions))
        for subtopology_id, partitions in tasks.items()
    ]


def member_tombstones(group_id: str, member_id: str) -> list[StreamsGroupRecord]:
    return [
        StreamsCurrentAssignment(group_id, member_id, None),
        StreamsTargetAssignment(group_id, member_id, None),
        StreamsMemberMetadata(group_id, member_id, None),
    ]
