"""OffsetFetch: the committed offsets of one group (to version 7) or of several (from 8 on).

2: null topics mean all; an error code for the whole response.
5: leader epoch.
7: require_stable (KIP-447).
8: several groups in one request.
9: member id and epoch (KIP-848).
10: topic ids.
"""

from protocol.schema.message import Message, Struct, row


class OffsetFetchRequestTopic(Struct):
    name: str = row("string", "0-7")
    partition_indexes: list[int] = row(["int32"], "0-7")


class OffsetFetchRequestTopics(Struct):
    name: str = row("string", "8-9", ignorable=True)
    topic_id: bytes = row("uuid", "10+", ignorable=True)
    partition_indexes: list[int] = row(["int32"], "8+")


class OffsetFetchRequestGroup(Struct):
    group_id: str = row("string", "8+")
    member_id: str | None = row("string", "9+", nullable="9+", default=None, ignorable=True)
    member_epoch: int = row("int32", "9+", default=-1, ignorable=True)
    topics: list[OffsetFetchRequestTopics] | None = row([OffsetFetchRequestTopics], "8+", nullable="8+")


class OffsetFetchRequest(Message, key=9, kind="request", versions="1-10", flexible="6+"):
    group_id: str = row("string", "0-7")
    topics: list[OffsetFetchRequestTopic] | None = row([OffsetFetchRequestTopic], "0-7", nullable="2-7")
    groups: list[OffsetFetchRequestGroup] = row([OffsetFetchRequestGroup], "8+")
    require_stable: bool = row("bool", "7+")


class OffsetFetchResponsePartition(Struct):
    partition_index: int = row("int32", "0-7")
    committed_offset: int = row("int64", "0-7")
    committed_leader_epoch: int = row("int32", "5-7", default=-1, ignorable=True)
    metadata: str | None = row("string", "0-7", nullable="0-7")
    error_code: int = row("int16", "0-7")


class OffsetFetchResponseTopic(Struct):
    name: str = row("string", "0-7")
    partitions: list[OffsetFetchResponsePartition] = row([OffsetFetchResponsePartition], "0-7")


class OffsetFetchResponsePartitions(Struct):
    partition_index: int = row("int32", "8+")
    committed_offset: int = row("int64", "8+")
    committed_leader_epoch: int = row("int32", "8+", default=-1, ignorable=True)
    metadata: str | None = row("string", "8+", nullable="8+")
    error_code: int = row("int16", "8+")


class OffsetFetchResponseTopics(Struct):
    name: str = row("string", "8-9", ignorable=True)
    topic_id: bytes = row("uuid", "10+", ignorable=True)
    partitions: list[OffsetFetchResponsePartitions] = row([OffsetFetchResponsePartitions], "8+")


class OffsetFetchResponseGroup(Struct):
    group_id: str = row("string", "8+")
    topics: list[OffsetFetchResponseTopics] = row([OffsetFetchResponseTopics], "8+")
    error_code: int = row("int16", "8+")


class OffsetFetchResponse(Message, key=9, kind="response", versions="1-10", flexible="6+"):
    throttle_time_ms: int = row("int32", "3+", ignorable=True)
    topics: list[OffsetFetchResponseTopic] = row([OffsetFetchResponseTopic], "0-7")
    error_code: int = row("int16", "2-7", ignorable=True)
    groups: list[OffsetFetchResponseGroup] = row([OffsetFetchResponseGroup], "8+")
