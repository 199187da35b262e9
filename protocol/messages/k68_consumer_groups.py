"""ConsumerGroupHeartbeat: joins a consumer group, keeps a member in it, reconciles its partitions, leaves it (KIP-848).

1: regular expressions; the client generates the member id (KIP-1082).

ConsumerGroupDescribe: a consumer group with its members, their assignments and their targets.

1: the type of a member (KIP-1099).
"""

from protocol.schema.message import Message, Struct, row


class ConsumerGroupHeartbeatRequestTopicPartitions(Struct):
    topic_id: bytes = row("uuid", "0+")
    partitions: list[int] = row(["int32"], "0+")


class ConsumerGroupHeartbeatRequest(Message, key=68, kind="request", versions="0-1", flexible="0+"):
    group_id: str = row("string", "0+")
    member_id: str = row("string", "0+")
    member_epoch: int = row("int32", "0+")
    instance_id: str | None = row("string", "0+", nullable="0+", default=None)
    rack_id: str | None = row("string", "0+", nullable="0+", default=None)
    rebalance_timeout_ms: int = row("int32", "0+", default=-1)
    subscribed_topic_names: list[str] | None = row(["string"], "0+", nullable="0+", default=None)
    subscribed_topic_regex: str | None = row("string", "1+", nullable="1+", default=None)
    server_assignor: str | None = row("string", "0+", nullable="0+", default=None)
    topic_partitions: list[ConsumerGroupHeartbeatRequestTopicPartitions] | None = row(
        [ConsumerGroupHeartbeatRequestTopicPartitions], "0+", nullable="0+", default=None
    )


class ConsumerGroupHeartbeatResponseTopicPartitions(Struct):
    topic_id: bytes = row("uuid", "0+")
    partitions: list[int] = row(["int32"], "0+")


class ConsumerGroupHeartbeatResponseAssignment(Struct):
    topic_partitions: list[ConsumerGroupHeartbeatResponseTopicPartitions] = row(
        [ConsumerGroupHeartbeatResponseTopicPartitions], "0+"
    )


class ConsumerGroupHeartbeatResponse(Message, key=68, kind="response", versions="0-1", flexible="0+"):
    throttle_time_ms: int = row("int32", "0+")
    error_code: int = row("int16", "0+")
    error_message: str | None = row("string", "0+", nullable="0+", default=None)
    member_id: str | None = row("string", "0+", nullable="0+", default=None)
    member_epoch: int = row("int32", "0+")
    heartbeat_interval_ms: int = row("int32", "0+")
    assignment: ConsumerGroupHeartbeatResponseAssignment | None = row(
        ConsumerGroupHeartbeatResponseAssignment, "0+", nullable="0+", default=None
    )


class ConsumerGroupDescribeRequest(Message, key=69, kind="request", versions="0-1", flexible="0+", costly=True):
    group_ids: list[str] = row(["string"], "0+")
    include_authorized_operations: bool = row("bool", "0+")


class ConsumerGroupDescribeTopicPartitions(Struct):
    topic_id: bytes = row("uuid", "0+")
    topic_name: str = row("string", "0+")
    partitions: list[int] = row(["int32"], "0+")


class ConsumerGroupDescribeAssignment(Struct):
    topic_partitions: list[ConsumerGroupDescribeTopicPartitions] = row([ConsumerGroupDescribeTopicPartitions], "0+")


class ConsumerGroupDescribeMember(Struct):
    member_id: str = row("string", "0+")
    instance_id: str | None = row("string", "0+", nullable="0+", default=None)
    rack_id: str | None = row("string", "0+", nullable="0+", default=None)
    member_epoch: int = row("int32", "0+")
    client_id: str = row("string", "0+")
    client_host: str = row("string", "0+")
    subscribed_topic_names: list[str] = row(["string"], "0+")
    subscribed_topic_regex: str | None = row("string", "0+", nullable="0+", default=None)
    assignment: ConsumerGroupDescribeAssignment = row(ConsumerGroupDescribeAssignment, "0+")
    target_assignment: ConsumerGroupDescribeAssignment = row(ConsumerGroupDescribeAssignment, "0+")
    member_type: int = row("int8", "1+", default=-1, ignorable=True)


class DescribedConsumerGroup(Struct):
    error_code: int = row("int16", "0+")
    error_message: str | None = row("string", "0+", nullable="0+", default=None)
    group_id: str = row("string", "0+")
    group_state: str = row("string", "0+")
    group_epoch: int = row("int32", "0+")
    assignment_epoch: int = row("int32", "0+")
    assignor_name: str = row("string", "0+")
    members: list[ConsumerGroupDescribeMember] = row([ConsumerGroupDescribeMember], "0+")
    authorized_operations: int = row("int32", "0+", default=-(2**31))


class ConsumerGroupDescribeResponse(Message, key=69, kind="response", versions="0-1", flexible="0+", costly=True):
    throttle_time_ms: int = row("int32", "0+")
    groups: list[DescribedConsumerGroup] = row([DescribedConsumerGroup], "0+")
