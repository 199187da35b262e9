"""DescribeReplicaLogs: how far the logs of a broker go, between brokers only. Kafka has no such API.

A partition without a log has the error UNKNOWN_TOPIC_OR_PARTITION.
"""

from protocol.schema.message import Message, Struct, row


class DescribeReplicaLogsRequestTopic(Struct):
    topic_id: bytes = row("uuid", "0+")
    partitions: list[int] = row(["int32"], "0+")


class DescribeReplicaLogsRequest(Message, key=10021, kind="request", versions="0", flexible="0+"):
    topics: list[DescribeReplicaLogsRequestTopic] = row([DescribeReplicaLogsRequestTopic], "0+")


class DescribeReplicaLogsResponsePartition(Struct):
    partition_index: int = row("int32", "0+")
    error_code: int = row("int16", "0+")
    leader_epoch: int = row("int32", "0+", default=-1)
    log_start_offset: int = row("int64", "0+", default=-1)
    log_end_offset: int = row("int64", "0+", default=-1)


class DescribeReplicaLogsResponseTopic(Struct):
    topic_id: bytes = row("uuid", "0+")
    partitions: list[DescribeReplicaLogsResponsePartition] = row([DescribeReplicaLogsResponsePartition], "0+")


class DescribeReplicaLogsResponse(Message, key=10021, kind="response", versions="0", flexible="0+"):
    throttle_time_ms: int = row("int32", "0+")
    error_code: int = row("int16", "0+")
    topics: list[DescribeReplicaLogsResponseTopic] = row([DescribeReplicaLogsResponseTopic], "0+")
