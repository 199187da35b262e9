"""DescribeQuorum: leader, voters and observers of the metadata quorum (KIP-595).

1: the times at which each replica last fetched and was last caught up (KIP-836).
2: error messages, directory ids, and the voters' endpoints (KIP-853).
"""

from protocol.schema.message import Message, Struct, row


class PartitionRequest(Struct):
    partition_index: int = row("int32", "0+")


class TopicRequest(Struct):
    topic_name: str = row("string", "0+")
    partitions: list[PartitionRequest] = row([PartitionRequest], "0+")


class DescribeQuorumRequest(Message, key=55, kind="request", versions="0-2", flexible="0+", costly=True):
    topics: list[TopicRequest] = row([TopicRequest], "0+")


class ReplicaState(Struct):
    replica_id: int = row("int32", "0+")
    replica_directory_id: bytes = row("uuid", "2+")
    log_end_offset: int = row("int64", "0+")
    last_fetch_timestamp: int = row("int64", "1+", default=-1, ignorable=True)
    last_caught_up_timestamp: int = row("int64", "1+", default=-1, ignorable=True)


class PartitionData(Struct):
    partition_index: int = row("int32", "0+")
    error_code: int = row("int16", "0+")
    error_message: str | None = row("string", "2+", nullable="2+", ignorable=True)
    leader_id: int = row("int32", "0+")
    leader_epoch: int = row("int32", "0+")
    high_watermark: int = row("int64", "0+")
    current_voters: list[ReplicaState] = row([ReplicaState], "0+")
    observers: list[ReplicaState] = row([ReplicaState], "0+")


class TopicData(Struct):
    topic_name: str = row("string", "0+")
    partitions: list[PartitionData] = row([PartitionData], "0+")


class Listener(Struct):
    name: str = row("string", "2+")
    host: str = row("string", "2+")
    port: int = row("uint16", "2+")


class Node(Struct):
    node_id: int = row("int32", "2+")
    listeners: list[Listener] = row([Listener], "2+")


class DescribeQuorumResponse(Message, key=55, kind="response", versions="0-2", flexible="0+"):
    error_code: int = row("int16", "0+")
    error_message: str | None = row("string", "2+", nullable="2+", ignorable=True)
    topics: list[TopicData] = row([TopicData], "0+")
    nodes: list[Node] = row([Node], "2+")
