"""The start offsets of share groups (KIP-932): they are described, altered and deleted.

DescribeShareGroupOffsets 1: the lag of each partition (KIP-1226).
"""

from protocol.schema.message import Message, Struct, row

# DescribeShareGroupOffsets


class DescribeShareGroupOffsetsRequestTopic(Struct):
    topic_name: str = row("string", "0+")
    partitions: list[int] = row(["int32"], "0+")


class DescribeShareGroupOffsetsRequestGroup(Struct):
    group_id: str = row("string", "0+")
    topics: list[DescribeShareGroupOffsetsRequestTopic] | None = row(
        [DescribeShareGroupOffsetsRequestTopic], "0+", nullable="0+"
    )


class DescribeShareGroupOffsetsRequest(Message, key=90, kind="request", versions="0-1", flexible="0+", costly=True):
    groups: list[DescribeShareGroupOffsetsRequestGroup] = row([DescribeShareGroupOffsetsRequestGroup], "0+")


class DescribeShareGroupOffsetsResponsePartition(Struct):
    partition_index: int = row("int32", "0+")
    start_offset: int = row("int64", "0+")
    leader_epoch: int = row("int32", "0+")
    lag: int = row("int64", "1+", default=-1, ignorable=True)
    error_code: int = row("int16", "0+")
    error_message: str | None = row("string", "0+", nullable="0+", default=None)


class DescribeShareGroupOffsetsResponseTopic(Struct):
    topic_name: str = row("string", "0+")
    topic_id: bytes = row("uuid", "0+")
    partitions: list[DescribeShareGroupOffsetsResponsePartition] = row(
        [DescribeShareGroupOffsetsResponsePartition], "0+"
    )


class DescribeShareGroupOffsetsResponseGroup(Struct):
    group_id: str = row("string", "0+")
    topics: list[DescribeShareGroupOffsetsResponseTopic] = row([DescribeShareGroupOffsetsResponseTopic], "0+")
    error_code: int = row("int16", "0+")
    error_message: str | None = row("string", "0+", nullable="0+", default=None)


class DescribeShareGroupOffsetsResponse(Message, key=90, kind="response", versions="0-1", flexible="0+"):
    throttle_time_ms: int = row("int32", "0+")
    groups: list[DescribeShareGroupOffsetsResponseGroup] = row([DescribeShareGroupOffsetsResponseGroup], "0+")


# AlterShareGroupOffsets


class AlterShareGroupOffsetsRequestPartition(Struct):
    partition_index: int = row("int32", "0+")
    start_offset: int = row("int64", "0+")


class AlterShareGroupOffsetsRequestTopic(Struct):
    topic_name: str = row("string", "0+")
    partitions: list[AlterShareGroupOffsetsRequestPartition] = row([AlterShareGroupOffsetsRequestPartition], "0+")


class AlterShareGroupOffsetsRequest(Message, key=91, kind="request", versions="0", flexible="0+"):
    group_id: str = row("string", "0+")
    topics: list[AlterShareGroupOffsetsRequestTopic] = row([AlterShareGroupOffsetsRequestTopic], "0+")


class AlterShareGroupOffsetsResponsePartition(Struct):
    partition_index: int = row("int32", "0+")
    error_code: int = row("int16", "0+")
    error_message: str | None = row("string", "0+", nullable="0+", default=None)


class AlterShareGroupOffsetsResponseTopic(Struct):
    topic_name: str = row("string", "0+")
    topic_id: bytes = row("uuid", "0+")
    partitions: list[AlterShareGroupOffsetsResponsePartition] = row([AlterShareGroupOffsetsResponsePartition], "0+")


class AlterShareGroupOffsetsResponse(Message, key=91, kind="response", versions="0", flexible="0+"):
    throttle_time_ms: int = row("int32", "0+")
    error_code: int = row("int16", "0+")
    error_message: str | None = row("string", "0+", nullable="0+", default=None)
    responses: list[AlterShareGroupOffsetsResponseTopic] = row([AlterShareGroupOffsetsResponseTopic], "0+")


# DeleteShareGroupOffsets


class DeleteShareGroupOffsetsRequestTopic(Struct):
    topic_name: str = row("string", "0+")


class DeleteShareGroupOffsetsRequest(Message, key=92, kind="request", versions="0", flexible="0+"):
    group_id: str = row("string", "0+")
    topics: list[DeleteShareGroupOffsetsRequestTopic] = row([DeleteShareGroupOffsetsRequestTopic], "0+")


class DeleteShareGroupOffsetsResponseTopic(Struct):
    topic_name: str = row("string", "0+")
    topic_id: bytes = row("uuid", "0+")
    error_code: int = row("int16", "0+")
    error_message: str | None = row("string", "0+", nullable="0+", default=None)


class DeleteShareGroupOffsetsResponse(Message, key=92, kind="response", versions="0", flexible="0+"):
    throttle_time_ms: int = row("int32", "0+")
    error_code: int = row("int16", "0+")
    error_message: str | None = row("string", "0+", nullable="0+", default=None)
    responses: list[DeleteShareGroupOffsetsResponseTopic] = row([DeleteShareGroupOffsetsResponseTopic], "0+")
