"""The keys and values of records in __consumer_offsets for share groups (KIP-932), each preceded by its version.

The version of a key is its kind: 10 member, 11 group epoch, 12 epoch of the target assignment, 13 target of a member,
14 current assignment of a member, 15 which partitions have a state at the share coordinator.
"""

from protocol.messages.consumer_group_records import TargetTopicPartition
from protocol.schema.message import Message, Struct, row


class ShareGroupMemberMetadataKey(Message, kind="data", versions="10", flexible="none"):
    group_id: str = row("string", "10")
    member_id: str = row("string", "10")


class ShareGroupMemberMetadataValue(Message, kind="data", versions="0", flexible="0+"):
    rack_id: str | None = row("string", "0+", nullable="0+")
    client_id: str = row("string", "0+")
    client_host: str = row("string", "0+")
    subscribed_topic_names: list[str] = row(["string"], "0+")


class ShareGroupMetadataKey(Message, kind="data", versions="11", flexible="none"):
    group_id: str = row("string", "11")


class ShareGroupMetadataValue(Message, kind="data", versions="0", flexible="0+"):
    epoch: int = row("int32", "0+")
    metadata_hash: int = row("int64", "0+")


class ShareGroupTargetAssignmentMetadataKey(Message, kind="data", versions="12", flexible="none"):
    group_id: str = row("string", "12")


class ShareGroupTargetAssignmentMetadataValue(Message, kind="data", versions="0", flexible="0+"):
    assignment_epoch: int = row("int32", "0+")
    assignment_timestamp: int = row("int64", "0+", tag=0, ignorable=True)


class ShareGroupTargetAssignmentMemberKey(Message, kind="data", versions="13", flexible="none"):
    group_id: str = row("string", "13")
    member_id: str = row("string", "13")


class ShareGroupTargetAssignmentMemberValue(Message, kind="data", versions="0", flexible="0+"):
    topic_partitions: list[TargetTopicPartition] = row([TargetTopicPartition], "0+")


class ShareGroupCurrentMemberAssignmentKey(Message, kind="data", versions="14", flexible="none"):
    group_id: str = row("string", "14")
    member_id: str = row("string", "14")


class ShareGroupCurrentMemberAssignmentValue(Message, kind="data", versions="0", flexible="0+"):
    member_epoch: int = row("int32", "0+")
    previous_member_epoch: int = row("int32", "0+")
    state: int = row("int8", "0+")
    assigned_partitions: list[TargetTopicPartition] = row([TargetTopicPartition], "0+")


class ShareGroupStatePartitionMetadataKey(Message, kind="data", versions="15", flexible="none"):
    group_id: str = row("string", "15")


class TopicPartitionsInfo(Struct):
    topic_id: bytes = row("uuid", "0+")
    topic_name: str = row("string", "0+")
    partitions: list[int] = row(["int32"], "0+")


class TopicInfo(Struct):
    topic_id: bytes = row("uuid", "0+")
    topic_name: str = row("string", "0+")


class ShareGroupStatePartitionMetadataValue(Message, kind="data", versions="0", flexible="0+"):
    initializing_topics: list[TopicPartitionsInfo] = row([TopicPartitionsInfo], "0+")
    initialized_topics: list[TopicPartitionsInfo] = row([TopicPartitionsInfo], "0+")
    deleting_topics: list[TopicInfo] = row([TopicInfo], "0+")
