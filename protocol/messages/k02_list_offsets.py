"""ListOffsets: the offset for a timestamp (ms), or for one of the special timestamps below zero.

2: isolation level.
4: leader epochs (KIP-320).
7: -3, the offset of the largest timestamp (KIP-734).
8: -4, the earliest local offset (KIP-405).
9: -5, the last tiered offset.
10: timeout for remote reads.
11: -6, the earliest offset that is not uploaded yet.
"""

from protocol.schema.message import Message, Struct, row


class ListOffsetsPartition(Struct):
    partition_index: int = row("int32", "0+")
    current_leader_epoch: int = row("int32", "4+", default=-1, ignorable=True)
    timestamp: int = row("int64", "0+")


class ListOffsetsTopic(Struct):
    name: str = row("string", "0+")
    partitions: list[ListOffsetsPartition] = row([ListOffsetsPartition], "0+")


class ListOffsetsRequest(Message, key=2, kind="request", versions="1-11", flexible="6+"):
    replica_id: int = row("int32", "0+")
    isolation_level: int = row("int8", "2+")
    topics: list[ListOffsetsTopic] = row([ListOffsetsTopic], "0+")
    timeout_ms: int = row("int32", "10+", ignorable=True)


class ListOffsetsPartitionResponse(Struct):
    partition_index: int = row("int32", "0+")
    error_code: int = row("int16", "0+")
    timestamp: int = row("int64", "1+", default=-1)
    offset: int = row("int64", "1+", default=-1)
    leader_epoch: int = row("int32", "4+", default=-1)


class ListOffsetsTopicResponse(Struct):
    name: str = row("string", "0+")
    partitions: list[ListOffsetsPartitionResponse] = row([ListOffsetsPartitionResponse], "0+")


class ListOffsetsResponse(Message, key=2, kind="response", versions="1-11", flexible="6+"):
    throttle_time_ms: int = row("int32", "2+", ignorable=True)
    topics: list[ListOffsetsTopicResponse] = row([ListOffsetsTopicResponse], "0+")
