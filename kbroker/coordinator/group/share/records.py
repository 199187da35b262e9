"""The records of share groups, with the bytes that Apache Kafka 4.4 writes and reads."""

from kbroker.coordinator.group.assignors.members import Assignment
from kbroker.coordinator.group.modern.modern_member import topic_partitions
from kbroker.coordinator.group.modern.record_codec import GroupRecord, MemberRecord, RecordType, codec_of
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


class ShareMemberMetadata(MemberRecord[ShareGroupMemberMetadataValue]):
    """What a member has sent (key 10)."""


class ShareGroupEpoch(GroupRecord[ShareGroupMetadataValue]):
    """The epoch of a group, and the hash of the topics that it subscribes to (key 11)."""


class ShareTargetEpoch(GroupRecord[ShareGroupTargetAssignmentMetadataValue]):
    """The group epoch for which the target assignment was computed, and when, in wall clock milliseconds (key 12)."""


class ShareTargetAssignment(MemberRecord[ShareGroupTargetAssignmentMemberValue]):
    """The partitions that a member should have (key 13)."""


class ShareCurrentAssignment(MemberRecord[ShareGroupCurrentMemberAssignmentValue]):
    """The epoch of a member, and the partitions that it has (key 14)."""


class ShareStateTopics(GroupRecord[ShareGroupStatePartitionMetadataValue]):
    """The partitions that have a state at the share coordinator, or are about to get or lose it (key 15)."""


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


def member_tombstones(group_id: str, member_id: str) -> list[ShareGroupRecord]:
    return [
        ShareCurrentAssignment(group_id, member_id, None),
        ShareTargetAssignment(group_id, member_id, None),
        ShareMemberMetadata(group_id, member_id, None),
    ]
