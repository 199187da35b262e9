"""The APIs of the share coordinator (KIP-932): the state of share partitions, which brokers initialize, read and write.

Write 1 and ReadSummary 1: the delivery complete count, for the lag of share groups (KIP-1226).

A range of offsets has a delivery state: 0 available, 2 acknowledged, 3 archiving (KIP-1191), 4 archived. `due_ms` is
kbroker's own field, which other brokers skip: the wall clock at which a range becomes available again, -1 if at once.
"""

from protocol.schema.message import Message, Struct, row

DUE_MS_TAG = 1000


class ShareStateBatch(Struct):
    first_offset: int = row("int64", "0+")
    last_offset: int = row("int64", "0+")
    delivery_state: int = row("int8", "0+")
    delivery_count: int = row("int16", "0+")
    due_ms: int = row("int64", "0+", tag=DUE_MS_TAG, default=-1)


class ShareStateResult(Struct):
    """The result of a partition in a response without further fields."""

    partition: int = row("int32", "0+")
    error_code: int = row("int16", "0+")
    error_message: str | None = row("string", "0+", nullable="0+", default=None)


class ShareStateTopicResult(Struct):
    topic_id: bytes = row("uuid", "0+")
    partitions: list[ShareStateResult] = row([ShareStateResult], "0+")


# InitializeShareGroupState


class InitializeStatePartition(Struct):
    partition: int = row("int32", "0+")
    state_epoch: int = row("int32", "0+")
    start_offset: int = row("int64", "0+")


class InitializeStateData(Struct):
    topic_id: bytes = row("uuid", "0+")
    partitions: list[InitializeStatePartition] = row([InitializeStatePartition], "0+")


class InitializeShareGroupStateRequest(Message, key=83, kind="request", versions="0", flexible="0+"):
    group_id: str = row("string", "0+")
    topics: list[InitializeStateData] = row([InitializeStateData], "0+")


class InitializeShareGroupStateResponse(Message, key=83, kind="response", versions="0", flexible="0+"):
    results: list[ShareStateTopicResult] = row([ShareStateTopicResult], "0+")


# ReadShareGroupState


class ReadStatePartition(Struct):
    partition: int = row("int32", "0+")
    leader_epoch: int = row("int32", "0+")


class ReadStateData(Struct):
    topic_id: bytes = row("uuid", "0+")
    partitions: list[ReadStatePartition] = row([ReadStatePartition], "0+")


class ReadShareGroupStateRequest(Message, key=84, kind="request", versions="0", flexible="0+"):
    group_id: str = row("string", "0+")
    topics: list[ReadStateData] = row([ReadStateData], "0+")


class ReadStatePartitionResult(Struct):
    partition: int = row("int32", "0+")
    error_code: int = row("int16", "0+")
    error_message: str | None = row("string", "0+", nullable="0+", default=None)
    state_epoch: int = row("int32", "0+")
    start_offset: int = row("int64", "0+")
    state_batches: list[ShareStateBatch] = row([ShareStateBatch], "0+")


class ReadStateResult(Struct):
    topic_id: bytes = row("uuid", "0+")
    partitions: list[ReadStatePartitionResult] = row([ReadStatePartitionResult], "0+")


class ReadShareGroupStateResponse(Message, key=84, kind="response", versions="0", flexible="0+"):
    results: list[ReadStateResult] = row([ReadStateResult], "0+")


# WriteShareGroupState


class WriteStatePartition(Struct):
    partition: int = row("int32", "0+")
    state_epoch: int = row("int32", "0+")
    leader_epoch: int = row("int32", "0+")
    start_offset: int = row("int64", "0+")
    delivery_complete_count: int = row("int32", "1+", default=-1, ignorable=True)
    state_batches: list[ShareStateBatch] = row([ShareStateBatch], "0+")


class WriteStateData(Struct):
    topic_id: bytes = row("uuid", "0+")
    partitions: list[WriteStatePartition] = row([WriteStatePartition], "0+")


class WriteShareGroupStateRequest(Message, key=85, kind="request", versions="0-1", flexible="0+"):
    group_id: str = row("string", "0+")
    topics: list[WriteStateData] = row([WriteStateData], "0+")


class WriteShareGroupStateResponse(Message, key=85, kind="response", versions="0-1", flexible="0+"):
    results: list[ShareStateTopicResult] = row([ShareStateTopicResult], "0+")


# DeleteShareGroupState


class DeleteStatePartition(Struct):
    partition: int = row("int32", "0+")


class DeleteStateData(Struct):
    topic_id: bytes = row("uuid", "0+")
    partitions: list[DeleteStatePartition] = row([DeleteStatePartition], "0+")


class DeleteShareGroupStateRequest(Message, key=86, kind="request", versions="0", flexible="0+"):
    group_id: str = row("string", "0+")
    topics: list[DeleteStateData] = row([DeleteStateData], "0+")


class DeleteShareGroupStateResponse(Message, key=86, kind="response", versions="0", flexible="0+"):
    results: list[ShareStateTopicResult] = row([ShareStateTopicResult], "0+")


# ReadShareGroupStateSummary


class ReadShareGroupStateSummaryRequest(Message, key=87, kind="request", versions="0-1", flexible="0+"):
    group_id: str = row("string", "0+")
    topics: list[ReadStateData] = row([ReadStateData], "0+")


class ReadStateSummaryPartitionResult(Struct):
    partition: int = row("int32", "0+")
    error_code: int = row("int16", "0+")
    error_message: str | None = row("string", "0+", nullable="0+", default=None)
    state_epoch: int = row("int32", "0+")
    leader_epoch: int = row("int32", "0+")
    start_offset: int = row("int64", "0+")
    delivery_complete_count: int = row("int32", "1+", default=-1, ignorable=True)


class ReadStateSummaryResult(Struct):
    topic_id: bytes = row("uuid", "0+")
    partitions: list[ReadStateSummaryPartitionResult] = row([ReadStateSummaryPartitionResult], "0+")


class ReadShareGroupStateSummaryResponse(Message, key=87, kind="response", versions="0-1", flexible="0+"):
    results: list[ReadStateSummaryResult] = row([ReadStateSummaryResult], "0+")
