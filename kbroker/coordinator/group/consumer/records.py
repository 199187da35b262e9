"""The records of consumer groups, with the bytes that Apache Kafka 4.4 writes and reads.

A group has one record of its epoch and one of the epoch of its target assignment; each member one of what it sent, one
of its target and one of its current assignment; each regular expression one of the topics that match.
"""

from typing import NamedTuple

from kbroker.coordinator.group.assignors.members import Assignment
from kbroker.coordinator.group.consumer.regex import ResolvedRegex
from kbroker.coordinator.group.modern.modern_member import topic_partitions
from kbroker.coordinator.group.modern.record_codec import GroupRecord, MemberRecord, RecordType, codec_of
from protocol.messages.consumer_group_records import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupRegularExpressionValue,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
)


class GroupEpoch(GroupRecord[ConsumerGroupMetadataValue]):
    """The epoch of a group, and the hash of the topics that it subscribes to (key 3)."""


class MemberMetadata(MemberRecord[ConsumerGroupMemberMetadataValue]):
    """What a member has sent (key 5)."""


class TargetEpoch(GroupRecord[ConsumerGroupTargetAssignmentMetadataValue]):
    """The group epoch for which the target assignment was computed, and when, in wall clock milliseconds (key 6)."""


class TargetAssignment(MemberRecord[ConsumerGroupTargetAssignmentMemberValue]):
    """The partitions that a member should have (key 7)."""


class CurrentAssignment(MemberRecord[ConsumerGroupCurrentMemberAssignmentValue]):
    """The epoch of a member, and the partitions that it has (key 8)."""


class RegularExpression(NamedTuple):
    """The topics that match a regular expression (key 16)."""

    group_id: str
    regular_expression: str
    value: ConsumerGroupRegularExpressionValue | None


ConsumerGroupRecord = (
    GroupEpoch | MemberMetadata | TargetEpoch | TargetAssignment | CurrentAssignment | RegularExpression
)

CODEC = codec_of(
    RecordType(GroupEpoch, ConsumerGroupMetadataKey, ConsumerGroupMetadataValue),
    RecordType(MemberMetadata, ConsumerGroupMemberMetadataKey, ConsumerGroupMemberMetadataValue),
    RecordType(TargetEpoch, ConsumerGroupTargetAssignmentMetadataKey, ConsumerGroupTargetAssignmentMetadataValue),
    RecordType(TargetAssignment, ConsumerGroupTargetAssignmentMemberKey, ConsumerGroupTargetAssignmentMemberValue),
    RecordType(CurrentAssignment, ConsumerGroupCurrentMemberAssignmentKey, ConsumerGroupCurrentMemberAssignmentValue),
    RecordType(RegularExpression, ConsumerGroupRegularExpressionKey, ConsumerGroupRegularExpressionValue),
)


def group_epoch_record(group_id: str, epoch: int, metadata_hash: int) -> GroupEpoch:
    return GroupEpoch(group_id, ConsumerGroupMetadataValue(epoch=epoch, metadata_hash=metadata_hash))


def target_epoch_record(group_id: str, epoch: int, timestamp_ms: int) -> TargetEpoch:
    """`timestamp_ms`: when the target was computed; 0 if the next one may be computed at once."""
    value = ConsumerGroupTargetAssignmentMetadataValue(assignment_epoch=epoch, assignment_timestamp=timestamp_ms)
    return TargetEpoch(group_id, value)


def target_record(group_id: str, member_id: str, target: Assignment) -> TargetAssignment:
    value = ConsumerGroupTargetAssignmentMemberValue(topic_partitions=topic_partitions(target))
    return TargetAssignment(group_id, member_id, value)


def regex_record(group_id: str, regex: str, resolved: ResolvedRegex) -> RegularExpression:
    value = ConsumerGroupRegularExpressionValue(
        topics=sorted(resolved.topics), version=resolved.version, timestamp=resolved.timestamp_ms
    )
    return RegularExpression(group_id, regex, value)


def member_tombstones(group_id: str, member_id: str) -> list[ConsumerGroupRecord]:
    return [
        CurrentAssignment(group_id, member_id, None),
        TargetAssignment(group_id, member_id, None),
        MemberMetadata(group_id, member_id, None),
    ]
