"""The records of share groups, with the bytes that Apache Kafka 4.4 writes and reads."""

from typing import NamedTuple

from kbroker.coordinator.group.assignors.members import Assignment
from kbroker.coordinator.group.modern.record_codec import RecordType, codec_of
from protocol.messages.consumer_group_records import TargetTopicPartition
from protocol.messages.share_group_records import (
    ShareGroupCurrentMemberAssignmentKey,
    ShareGroupCurrentMemberAssignmentValue,
    ShareGroupMemberMetadataKey,
    ShareGroupMemberMetadataValue,
    ShareGroupMetadataKey,
    ShareGroupMetadataValue,
    ShareGroupStatePartitionMetadataKey,
    ShareGroupStatePartitionMetadataValue,
    ShareGroupTargetAssignmentMemberKey,
    ShareGroupTargetAssignmentMemberValue,
    ShareGroupTargetAssignmentMetadataKey,
    ShareGroupTargetAssignmentMetadataValue,
)


class ShareMemberMetadata(NamedTuple):
    """What a member has sent (key 10)."""

    group_id: str
    member_id: str
    value: ShareGroupMemberMetadataValue | None


class ShareGroupEpoch(NamedTuple):
    """The epoch of a group, and the hash of the topics that it subscribes to (key 11)."""

    group_id: str
    value: ShareGroupMetadataValue | None


class ShareTargetEpoch(NamedTuple):
    """The group epoch for which the target assignment was computed, and when, in wall clock milliseconds (key 12)."""

    group_id: str
    value: ShareGroupTargetAssignmentMetadataValue | None


class ShareTargetAssignment(NamedTuple):
    """The partitions that a member should have (key 13)."""

    group_id: str
    member_id: str
    value: ShareGroupTargetAssignmentMemberValue | None


class ShareCurrentAssignment(NamedTuple):
    """The epoch of a member, and the partitions that it has (key 14)."""

    group_id: str
    member_id: str
    value: ShareGroupCurrentMemberAssignmentValue | None


class ShareStateTopics(NamedTuple):
    """The partitions that have a state at the share coordinator, or are about to get or lose it (key 15)."""

    group_id: str
    value: ShareGroupStatePartitionMetadataValue | None


ShareGroupRecord = (
    ShareMemberMetadata
    | ShareGroupEpoch
    | ShareTargetEpoch
    | ShareTargetAssignment
    | ShareCurrentAssignment
    | ShareStateTopics
)

CODEC = codec_of(
    RecordType(ShareMemberMetadata, ShareGroupMemberMetadataKey, ShareGroupMemberMetadataValue),
    RecordType(ShareGroupEpoch, ShareGroupMetadataKey, ShareGroupMetadataValue),
    RecordType(ShareTargetEpoch, ShareGroupTargetAssignmentMetadataKey, ShareGroupTargetAssignmentMetadataValue),
    RecordType(ShareTargetAssignment, ShareGroupTargetAssignmentMemberKey, ShareGroupTargetAssignmentMemberValue),
    RecordType(ShareCurrentAssignment, ShareGroupCurrentMemberAssignmentKey, ShareGroupCurrentMemberAssignmentValue),
    RecordType(ShareStateTopics, ShareGroupStatePartitionMetadataKey, ShareGroupStatePartitionMetadataValue),
)


def group_epoch_record(group_id: str, epoch: int, metadata_hash: int) -> ShareGroupEpoch:
    return ShareGroupEpoch(group_id, ShareGroupMetadataValue(epoch=epoch, metadata_hash=metadata_hash))


def target_epoch_record(group_id: str, epoch: int, timestamp_ms: int) -> ShareTargetEpoch:
    value = ShareGroupTargetAssignmentMetadataValue(assignment_epoch=epoch, assignment_timestamp=timestamp_ms)
    return ShareTargetEpoch(group_id, value)


def target_record(group_id: str, member_id: str, target: Assignment) -> ShareTargetAssignment:
    value = ShareGroupTargetAssignmentMemberValue(topic_partitions=topic_partitions(target))
    return ShareTargetAssignment(group_id, member_id, value)


def topic_partitions(assignment: Assignment) -> list[TargetTopicPartition]:
    return [TargetTopicPartition(topic_id=topic_id, partitions=list(own)) for topic_id, own in assignment.items()]


def member_tombstones(group_id: str, member_id: str) -> list[ShareGroupRecord]:
    return [
        ShareCurrentAssignment(group_id, member_id, None),
        ShareTargetAssignment(group_id, member_id, None),
        ShareMemberMetadata(group_id, member_id, None),
    ]
