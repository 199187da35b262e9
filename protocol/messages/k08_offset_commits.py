"""OffsetCommit: store the committed offsets of a group.

2-4: retention time (ms) of the request.
6: leader epoch (KIP-320).
7: static members (KIP-345).
9: groups of the new protocol (KIP-848), whose generation is the member epoch.
10: topic ids.

TxnOffsetCommit: commit offsets of a group in a transaction (KIP-98).

2: leader epoch (KIP-320).
3: member, instance and generation, for fencing (KIP-447).
4: the error TRANSACTION_ABORTABLE (KIP-890).
5: transactions v2: the group is added to the transaction by this request (KIP-890).
6: topic ids (KIP-1319); the generation may be a member epoch.
"""

from protocol.schema.message import Message, Struct, row


class OffsetCommitRequestPartition(Struct):
    partition_index: int = row("int32", "0+")
    committed_offset: int = row("int64", "0+")
    committed_leader_epoch: int = row("int32", "6+", default=-1, ignorable=True)
    committed_metadata: str | None = row("string", "0+", nullable="0+")


class OffsetCommitRequestTopic(Struct):
    name: str = row("string", "0-9", ignorable=True)
    topic_id: bytes = row("uuid", "10+", ignorable=True)
    partitions: list[OffsetCommitRequestPartition] = row([OffsetCommitRequestPartition], "0+")


class OffsetCommitRequest(Message, key=8, kind="request", versions="2-10", flexible="8+"):
    group_id: str = row("string", "0+")
    generation_id_or_member_epoch: int = row("int32", "1+", default=-1, ignorable=True)
    member_id: str = row("string", "1+", ignorable=True)
    group_instance_id: str | None = row("string", "7+", nullable="7+", default=None)
    retention_time_ms: int = row("int64", "2-4", default=-1, ignorable=True)
    topics: list[OffsetCommitRequestTopic] = row([OffsetCommitRequestTopic], "0+")


class OffsetCommitResponsePartition(Struct):
    partition_index: int = row("int32", "0+")
    error_code: int = row("int16", "0+")


class OffsetCommitResponseTopic(Struct):
    name: str = row("string", "0-9", ignorable=True)
    topic_id: bytes = row("uuid", "10+", ignorable=True)
    partitions: list[OffsetCommitResponsePartition] = row([OffsetCommitResponsePartition], "0+")


class OffsetCommitResponse(Message, key=8, kind="response", versions="2-10", flexible="8+"):
    throttle_time_ms: int = row("int32", "3+", ignorable=True)
    topics: list[OffsetCommitResponseTopic] = row([OffsetCommitResponseTopic], "0+")


class TxnOffsetCommitRequestPartition(Struct):
    partition_index: int = row("int32", "0+")
    committed_offset: int = row("int64", "0+")
    committed_leader_epoch: int = row("int32", "2+", default=-1, ignorable=True)
    committed_metadata: str | None = row("string", "0+", nullable="0+")


class TxnOffsetCommitRequestTopic(Struct):
    name: str = row("string", "0-5", ignorable=True)
    topic_id: bytes = row("uuid", "6+", ignorable=True)
    partitions: list[TxnOffsetCommitRequestPartition] = row([TxnOffsetCommitRequestPartition], "0+")


class TxnOffsetCommitRequest(Message, key=28, kind="request", versions="0-6", flexible="3+"):
    transactional_id: str = row("string", "0+")
    group_id: str = row("string", "0+")
    producer_id: int = row("int64", "0+")
    producer_epoch: int = row("int16", "0+")
    generation_id_or_member_epoch: int = row("int32", "3+", default=-1)
    member_id: str = row("string", "3+")
    group_instance_id: str | None = row("string", "3+", nullable="3+", default=None)
    topics: list[TxnOffsetCommitRequestTopic] = row([TxnOffsetCommitRequestTopic], "0+")


class TxnOffsetCommitResponsePartition(Struct):
    partition_index: int = row("int32", "0+")
    error_code: int = row("int16", "0+")


class TxnOffsetCommitResponseTopic(Struct):
    name: str = row("string", "0-5", ignorable=True)
    topic_id: bytes = row("uuid", "6+", ignorable=True)
    partitions: list[TxnOffsetCommitResponsePartition] = row([TxnOffsetCommitResponsePartition], "0+")


class TxnOffsetCommitResponse(Message, key=28, kind="response", versions="0-6", flexible="3+"):
    throttle_time_ms: int = row("int32", "0+")
    topics: list[TxnOffsetCommitResponseTopic] = row([TxnOffsetCommitResponseTopic], "0+")
