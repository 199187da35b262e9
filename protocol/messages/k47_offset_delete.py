"""OffsetDelete: drop a group's offsets of topics that it does not subscribe to (KIP-496). No version is flexible."""

from protocol.schema.message import Message, Struct, row


class OffsetDeleteRequestPartition(Struct):
    partition_index: int = row("int32", "0+")


class OffsetDeleteRequestTopic(Struct):
    name: str = row("string", "0+")
    partitions: list[OffsetDeleteRequestPartition] = row([OffsetDeleteRequestPartition], "0+")


class OffsetDeleteRequest(Message, key=47, kind="request", versions="0", flexible="none"):
    group_id: str = row("string", "0+")
    topics: list[OffsetDeleteRequestTopic] = row([OffsetDeleteRequestTopic], "0+")


class OffsetDeleteResponsePartition(Struct):
    partition_index: int = row("int32", "0+")
    error_code: int = row("int16", "0+")


class OffsetDeleteResponseTopic(Struct):
    name: str = row("string", "0+")
    partitions: list[OffsetDeleteResponsePartition] = row([OffsetDeleteResponsePartition], "0+")


class OffsetDeleteResponse(Message, key=47, kind="response", versions="0", flexible="none"):
    error_code: int = row("int16", "0+")
    throttle_time_ms: int = row("int32", "0+", ignorable=True)
    topics: list[OffsetDeleteResponseTopic] = row([OffsetDeleteResponseTopic], "0+")
