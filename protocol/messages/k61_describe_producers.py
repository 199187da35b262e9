"""DescribeProducers: the producers of partitions, from their leaders (KIP-664)."""

from protocol.schema.message import Message, Struct, row


class TopicRequest(Struct):
    name: str = row("string", "0+")
    partition_indexes: list[int] = row(["int32"], "0+")


class DescribeProducersRequest(Message, key=61, kind="request", versions="0", flexible="0+"):
    topics: list[TopicRequest] = row([TopicRequest], "0+")


class ProducerState(Struct):
    producer_id: int = row("int64", "0+")
    producer_epoch: int = row("int32", "0+")
    last_sequence: int = row("int32", "0+", default=-1)
    last_timestamp: int = row("int64", "0+", default=-1)
    coordinator_epoch: int = row("int32", "0+")
    current_txn_start_offset: int = row("int64", "0+", default=-1)


class PartitionResponse(Struct):
    partition_index: int = row("int32", "0+")
    error_code: int = row("int16", "0+")
    error_message: str | None = row("string", "0+", nullable="0+", default=None)
    active_producers: list[ProducerState] = row([ProducerState], "0+")


class TopicResponse(Struct):
    name: str = row("string", "0+")
    partitions: list[PartitionResponse] = row([PartitionResponse], "0+")


class DescribeProducersResponse(Message, key=61, kind="response", versions="0", flexible="0+"):
    throttle_time_ms: int = row("int32", "0+")
    topics: list[TopicResponse] = row([TopicResponse], "0+")
