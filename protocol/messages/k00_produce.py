"""Produce: append record batches to partitions.

3: transactional id, message format 2.
5: log start offset.
8: errors of single records (KIP-467).
10: the new leader in the response (KIP-951).
11-12: transactions of KIP-890.
13: topic ids (KIP-516).

Times are in milliseconds. The broker uses protocol/fast/produce.py; tests compare it with these rows.
"""

from protocol.schema.message import Message, Struct, row
from protocol.schema.primitives import Buffer


class PartitionProduceData(Struct):
    index: int = row("int32", "0+")
    records: Buffer | None = row("records", "0+", nullable="0+", default=None)


class TopicProduceData(Struct):
    name: str = row("string", "0-12", ignorable=True)
    topic_id: bytes = row("uuid", "13+", ignorable=True)
    partition_data: list[PartitionProduceData] = row([PartitionProduceData], "0+")


class ProduceRequest(Message, key=0, kind="request", versions="3-13", flexible="9+"):
    transactional_id: str | None = row("string", "3+", nullable="3+", default=None)
    acks: int = row("int16", "0+")
    timeout_ms: int = row("int32", "0+")
    topic_data: list[TopicProduceData] = row([TopicProduceData], "0+")


class BatchIndexAndErrorMessage(Struct):
    batch_index: int = row("int32", "8+")
    batch_index_error_message: str | None = row("string", "8+", nullable="8+", default=None)


class LeaderIdAndEpoch(Struct):
    leader_id: int = row("int32", "10+", default=-1)
    leader_epoch: int = row("int32", "10+", default=-1)


class PartitionProduceResponse(Struct):
    index: int = row("int32", "0+")
    error_code: int = row("int16", "0+")
    base_offset: int = row("int64", "0+")
    log_append_time_ms: int = row("int64", "2+", default=-1, ignorable=True)
    log_start_offset: int = row("int64", "5+", default=-1, ignorable=True)
    record_errors: list[BatchIndexAndErrorMessage] = row([BatchIndexAndErrorMessage], "8+", ignorable=True)
    error_message: str | None = row("string", "8+", nullable="8+", default=None, ignorable=True)
    current_leader: LeaderIdAndEpoch = row(LeaderIdAndEpoch, "10+", tag=0)


class TopicProduceResponse(Struct):
    name: str = row("string", "0-12", ignorable=True)
    topic_id: bytes = row("uuid", "13+", ignorable=True)
    partition_responses: list[PartitionProduceResponse] = row([PartitionProduceResponse], "0+")


class NodeEndpoint(Struct):
    node_id: int = row("int32", "10+")
    host: str = row("string", "10+")
    port: int = row("int32", "10+")
    rack: str | None = row("string", "10+", nullable="10+", default=None)


class ProduceResponse(Message, key=0, kind="response", versions="3-13", flexible="9+"):
    responses: list[TopicProduceResponse] = row([TopicProduceResponse], "0+")
    throttle_time_ms: int = row("int32", "1+", ignorable=True)
    node_endpoints: list[NodeEndpoint] = row([NodeEndpoint], "10+", tag=0)
