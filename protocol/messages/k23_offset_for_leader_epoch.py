"""OffsetForLeaderEpoch: where a leader epoch ended, for finding a divergence (KIP-320).

2: current leader epoch.
3: replica id.
"""

from protocol.schema.message import Message, Struct, row


class OffsetForLeaderPartition(Struct):
    partition: int = row("int32", "0+")
    current_leader_epoch: int = row("int32", "2+", default=-1, ignorable=True)
    leader_epoch: int = row("int32", "0+")


class OffsetForLeaderTopic(Struct):
    topic: str = row("string", "0+")
    partitions: list[OffsetForLeaderPartition] = row([OffsetForLeaderPartition], "0+")


class OffsetForLeaderEpochRequest(Message, key=23, kind="request", versions="2-4", flexible="4+"):
    replica_id: int = row("int32", "3+", default=-2, ignorable=True)
    topics: list[OffsetForLeaderTopic] = row([OffsetForLeaderTopic], "0+")


class EpochEndOffset(Struct):
    error_code: int = row("int16", "0+")
    partition: int = row("int32", "0+")
    leader_epoch: int = row("int32", "1+", default=-1, ignorable=True)
    end_offset: int = row("int64", "0+", default=-1)


class OffsetForLeaderTopicResult(Struct):
    topic: str = row("string", "0+")
    partitions: list[EpochEndOffset] = row([EpochEndOffset], "0+")


class OffsetForLeaderEpochResponse(Message, key=23, kind="response", versions="2-4", flexible="4+"):
    throttle_time_ms: int = row("int32", "2+", ignorable=True)
    topics: list[OffsetForLeaderTopicResult] = row([OffsetForLeaderTopicResult], "0+")
