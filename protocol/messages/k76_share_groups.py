"""Share groups (KIP-932): ShareGroupHeartbeat and ShareGroupDescribe. Version 0 was that of a preview."""

from protocol.schema.message import Message, Struct, row


class ShareGroupHeartbeatRequest(Message, key=76, kind="request", versions="1", flexible="0+"):
    group_id: str = row("string", "0+")
    member_id: str = row("string", "0+")
    member_epoch: int = row("int32", "0+")
    rack_id: str | None = row("string", "0+", nullable="0+", default=None)
    subscribed_topic_names: list[str] | None = row(["string"], "0+", nullable="0+", default=None)


class ShareGroupTopicPartitions(Struct):
    topic_id: bytes = row("uuid", "0+")
    partitions: list[int] = row(["int32"], "0+")


class ShareGroupAssignment(Struct):
    topic_partitions: list[ShareGroupTopicPartitions] = row([ShareGroupTopicPartitions], "0+")


class ShareGroupHeartbeatResponse(Message, key=76, kind="response", versions="1", flexible="0+"):
    throttle_time_ms: int = row("int32", "0+")
    error_code: int = row("int16", "0+")
    error_message: str | None = row("string", "0+", nullable="0+", default=None)
    member_id: str | None = row("string", "0+", nullable="0+", default=None)
    member_epoch: int = row("int32", "0+")
    heartbeat_interval_ms: int = row("int32", "0+")
    assignment: ShareGroupAssignment | None = row(ShareGroupAssignment, "0+", nullable="0+", default=None)


class ShareGroupDescribeRequest(Message, key=77, kind="request", versions="1", flexible="0+", costly=True):
    group_ids: list[str] = row(["string"], "0+")
    include_authorized_operations: bool = row("bool", "0+")


class DescribedTopicPartitions(Struct):
    topic_id: bytes = row("uuid", "0+")
    topic_name: str = row("string", "0+")
    partitions: list[int] = row(["int32"], "0+")


class DescribedAssignment(Struct):
    topic_partitions: list[DescribedTopicPartitions] = row([DescribedTopicPartitions], "0+")


class DescribedShareGroupMember(Struct):
    member_id: str = row("string", "0+")
    rack_id: str | None = row("string", "0+", nullable="0+", default=None)
    member_epoch: int = row("int32", "0+")
    client_id: str = row("string", "0+")
    client_host: str = row("string", "0+")
    subscribed_topic_names: list[str] = row(["string"], "0+")
    assignment: DescribedAssignment = row(DescribedAssignment, "0+")


class DescribedShareGroup(Struct):
    error_code: int = row("int16", "0+")
    error_message: str | None = row("string", "0+", nullable="0+", default=None)
    group_id: str = row("string", "0+")
    group_state: str = row("string", "0+")
    group_epoch: int = row("int32", "0+")
    assignment_epoch: int = row("int32", "0+")
    assignor_name: str = row("string", "0+")
    members: list[DescribedShareGroupMember] = row([DescribedShareGroupMember], "0+")
    authorized_operations: int = row("int32", "0+", default=-(1 << 31))


class ShareGroupDescribeResponse(Message, key=77, kind="response", versions="1", flexible="0+"):
    throttle_time_ms: int = row("int32", "0+")
    groups: list[DescribedShareGroup] = row([DescribedShareGroup], "0+")
