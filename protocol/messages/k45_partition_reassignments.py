"""AlterPartitionReassignments: move partitions to other brokers, or cancel that (KIP-455).

1: allow_replication_factor_change (KIP-860).

ListPartitionReassignments: the partitions whose replicas are being moved (KIP-455).
"""

from protocol.schema.message import Message, Struct, row


class ReassignablePartition(Struct):
    partition_index: int = row("int32", "0+")
    replicas: list[int] | None = row(["int32"], "0+", nullable="0+", default=None)


class ReassignableTopic(Struct):
    name: str = row("string", "0+")
    partitions: list[ReassignablePartition] = row([ReassignablePartition], "0+")


class AlterPartitionReassignmentsRequest(Message, key=45, kind="request", versions="0-1", flexible="0+", costly=True):
    timeout_ms: int = row("int32", "0+", default=60000)
    allow_replication_factor_change: bool = row("bool", "1+", default=True)
    topics: list[ReassignableTopic] = row([ReassignableTopic], "0+")


class ReassignablePartitionResponse(Struct):
    partition_index: int = row("int32", "0+")
    error_code: int = row("int16", "0+")
    error_message: str | None = row("string", "0+", nullable="0+")


class ReassignableTopicResponse(Struct):
    name: str = row("string", "0+")
    partitions: list[ReassignablePartitionResponse] = row([ReassignablePartitionResponse], "0+")


class AlterPartitionReassignmentsResponse(Message, key=45, kind="response", versions="0-1", flexible="0+"):
    throttle_time_ms: int = row("int32", "0+")
    allow_replication_factor_change: bool = row("bool", "1+", default=True, ignorable=True)
    error_code: int = row("int16", "0+")
    error_message: str | None = row("string", "0+", nullable="0+")
    responses: list[ReassignableTopicResponse] = row([ReassignableTopicResponse], "0+")


class ListPartitionReassignmentsTopics(Struct):
    name: str = row("string", "0+")
    partition_indexes: list[int] = row(["int32"], "0+")


class ListPartitionReassignmentsRequest(Message, key=46, kind="request", versions="0", flexible="0+"):
    timeout_ms: int = row("int32", "0+", default=60000)
    topics: list[ListPartitionReassignmentsTopics] | None = row(
        [ListPartitionReassignmentsTopics], "0+", nullable="0+", default=None
    )


class OngoingPartitionReassignment(Struct):
    partition_index: int = row("int32", "0+")
    replicas: list[int] = row(["int32"], "0+")
    adding_replicas: list[int] = row(["int32"], "0+")
    removing_replicas: list[int] = row(["int32"], "0+")


class OngoingTopicReassignment(Struct):
    name: str = row("string", "0+")
    partitions: list[OngoingPartitionReassignment] = row([OngoingPartitionReassignment], "0+")


class ListPartitionReassignmentsResponse(Message, key=46, kind="response", versions="0", flexible="0+"):
    throttle_time_ms: int = row("int32", "0+")
    error_code: int = row("int16", "0+")
    error_message: str | None = row("string", "0+", nullable="0+")
    topics: list[OngoingTopicReassignment] = row([OngoingTopicReassignment], "0+")
