"""TxnOffsetCommit: commit offsets of a group in a transaction (KIP-98).

2: leader epoch (KIP-320).
3: member, instance and generation, for fencing (KIP-447).
4: the error TRANSACTION_ABORTABLE (KIP-890).
5: transactions v2: the group is added to the transaction by this request (KIP-890).
"""

from protocol.schema.message import Message, Struct, row


class TxnOffsetCommitRequestPartition(Struct):
    partition_index: int = row("int32", "0+")
    committed_offset: int = row("int64", "0+")
    committed_leader_epoch: int = row("int32", "2+", default=-1, ignorable=True)
    committed_metadata: str | None = row("string", "0+", nullable="0+")


class TxnOffsetCommitRequestTopic(Struct):
    name: str = row("string", "0+")
    partitions: list[TxnOffsetCommitRequestPartition] = row([TxnOffsetCommitRequestPartition], "0+")


class TxnOffsetCommitRequest(Message, key=28, kind="request", versions="0-5", flexible="3+"):
    transactional_id: str = row("string", "0+")
    group_id: str = row("string", "0+")
    producer_id: int = row("int64", "0+")
    producer_epoch: int = row("int16", "0+")
    generation_id: int = row("int32", "3+", default=-1)
    member_id: str = row("string", "3+")
    group_instance_id: str | None = row("string", "3+", nullable="3+", default=None)
    topics: list[TxnOffsetCommitRequestTopic] = row([TxnOffsetCommitRequestTopic], "0+")


class TxnOffsetCommitResponsePartition(Struct):
    partition_index: int = row("int32", "0+")
    error_code: int = row("int16", "0+")


class TxnOffsetCommitResponseTopic(Struct):
    name: str = row("string", "0+")
    partitions: list[TxnOffsetCommitResponsePartition] = row([TxnOffsetCommitResponsePartition], "0+")


class TxnOffsetCommitResponse(Message, key=28, kind="response", versions="0-5", flexible="3+"):
    throttle_time_ms: int = row("int32", "0+")
    topics: list[TxnOffsetCommitResponseTopic] = row([TxnOffsetCommitResponseTopic], "0+")
