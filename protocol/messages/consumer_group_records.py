"""The keys and values of records in __consumer_offsets for consumer groups (KIP-848), each preceded by its version.

The version of a key is its kind: 3 is the group epoch, 5 a member, 6 the epoch of the target assignment, 7 the target
of a member, 8 its current assignment, 16 a regular expression. Key 4, the metadata of topics, is of Kafka before 4.1.
"""

from protocol.schema.message import Message, Struct, row


class ConsumerGroupMetadataKey(Message, kind="data", versions="3", flexible="none"):
    group_id: str = row("string", "3")


class ConsumerGroupMetadataValue(Message, kind="data", versions="0", flexible="0+"):
    epoch: int = row("int32", "0+")
    metadata_hash: int = row("int64", "0+", tag=0, default=0)


class ConsumerGroupMemberMetadataKey(Message, kind="data", versions="5", flexible="none"):
    group_id: str = row("string", "5")
    member_id: str = row("string", "5")


class ClassicProtocol(Struct):
    name: str = row("string", "0+")
    metadata: bytes = row("bytes", "0+")


class ClassicMemberMetadata(Struct):
    session_timeout_ms: int = row("int32", "0+")
    supported_protocols: list[ClassicProtocol] = row([ClassicProtocol], "0+")


class ConsumerGroupMemberMetadataValue(Message, kind="data", versions="0", flexible="0+"):
    instance_id: str | None = row("string", "0+", nullable="0+")
    rack_id: str | None = row("string", "0+", nullable="0+")
    client_id: str = row("string", "0+")
    client_host: str = row("string", "0+")
    subscribed_topic_names: list[str] = row(["string"], "0+")
    subscribed_topic_regex: str | None = row("string", "0+", nullable="0+")
    rebalance_timeout_ms: int = row("int32", "0+", default=-1)
    server_assignor: str | None = row("string", "0+", nullable="0+")
    classic_member_metadata: ClassicMemberMetadata | None = row(ClassicMemberMetadata, "0+", nullable="0+", tag=0)


class ConsumerGroupTargetAssignmentMetadataKey(Message, kind="data", versions="6", flexible="none"):
    group_id: str = row("string", "6")


class ConsumerGroupTargetAssignmentMetadataValue(Message, kind="data", versions="0", flexible="0+"):
    assignment_epoch: int = row("int32", "0+")
    assignment_timestamp: int = row("int64", "0+", tag=0, default=0, ignorable=True)


class ConsumerGroupTargetAssignmentMemberKey(Message, kind="data", versions="7", flexible="none"):
    group_id: str = row("string", "7")
    member_id: str = row("string", "7")


class TargetTopicPartition(Struct):
    topic_id: bytes = row("uuid", "0+")
    partitions: list[int] = row(["int32"], "0+")


class ConsumerGroupTargetAssignmentMemberValue(Message, kind="data", versions="0", flexible="0+"):
    topic_partitions: list[TargetTopicPartition] = row([TargetTopicPartition], "0+")


class ConsumerGroupCurrentMemberAssignmentKey(Message, kind="data", versions="8", flexible="none"):
    group_id: str = row("string", "8")
    member_id: str = row("string", "8")


class CurrentTopicPartitions(Struct):
    topic_id: bytes = row("uuid", "0+")
    partitions: list[int] = row(["int32"], "0+")
    assignment_epochs: list[int] | None = row(["int32"], "0+", nullable="0+", tag=0)


class ConsumerGroupCurrentMemberAssignmentValue(Message, kind="data", versions="0", flexible="0+"):
    member_epoch: int = row("int32", "0+")
    previous_member_epoch: int = row("int32", "0+")
    state: int = row("int8", "0+")
    assigned_partitions: list[CurrentTopicPartitions] = row([CurrentTopicPartitions], "0+")
    partitions_pending_revocation: list[CurrentTopicPartitions] = row([CurrentTopicPartitions], "0+")


class ConsumerGroupRegularExpressionKey(Message, kind="data", versions="16", flexible="none"):
    group_id: str = row("string", "16")
    regular_expression: str = row("string", "16")


class ConsumerGroupRegularExpressionValue(Message, kind="data", versions="0", flexible="0+"):
    topics: list[str] = row(["string"], "0+")
    version: int = row("int64", "0+")
    timestamp: int = row("int64", "0+")
