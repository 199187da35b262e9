"""DescribeTopicPartitions: topics with their partitions in pages, with cursors (KIP-966)."""

from protocol.schema.message import Message, Struct, row


class TopicRequest(Struct):
    name: str = row("string", "0+")


class Cursor(Struct):
    topic_name: str = row("string", "0+")
    partition_index: int = row("int32", "0+")


class DescribeTopicPartitionsRequest(Message, key=75, kind="request", versions="0", flexible="0+"):
    topics: list[TopicRequest] = row([TopicRequest], "0+")
    response_partition_limit: int = row("int32", "0+", default=2000)
    cursor: Cursor | None = row(Cursor, "0+", nullable="0+", default=None)


class DescribeTopicPartitionsResponsePartition(Struct):
    error_code: int = row("int16", "0+")
    partition_index: int = row("int32", "0+")
    leader_id: int = row("int32", "0+")
    leader_epoch: int = row("int32", "0+", default=-1, ignorable=True)
    replica_nodes: list[int] = row(["int32"], "0+")
    isr_nodes: list[int] = row(["int32"], "0+")
    eligible_leader_replicas: list[int] | None = row(["int32"], "0+", nullable="0+", default=None)
    last_known_elr: list[int] | None = row(["int32"], "0+", nullable="0+", default=None)
    offline_replicas: list[int] = row(["int32"], "0+", ignorable=True)


class DescribeTopicPartitionsResponseTopic(Struct):
    error_code: int = row("int16", "0+")
    name: str | None = row("string", "0+", nullable="0+")
    topic_id: bytes = row("uuid", "0+", ignorable=True)
    is_internal: bool = row("bool", "0+", ignorable=True)
    partitions: list[DescribeTopicPartitionsResponsePartition] = row([DescribeTopicPartitionsResponsePartition], "0+")
    topic_authorized_operations: int = row("int32", "0+", default=-(2**31))


class DescribeTopicPartitionsResponse(Message, key=75, kind="response", versions="0", flexible="0+"):
    throttle_time_ms: int = row("int32", "0+", ignorable=True)
    topics: list[DescribeTopicPartitionsResponseTopic] = row([DescribeTopicPartitionsResponseTopic], "0+")
    next_cursor: Cursor | None = row(Cursor, "0+", nullable="0+", default=None)
