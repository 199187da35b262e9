"""DeleteRecords: advance the log start offset; -1 stands for the high watermark."""

from protocol.schema.message import Message, Struct, row


class DeleteRecordsPartition(Struct):
    partition_index: int = row("int32", "0+")
    offset: int = row("int64", "0+")


class DeleteRecordsTopic(Struct):
    name: str = row("string", "0+")
    partitions: list[DeleteRecordsPartition] = row([DeleteRecordsPartition], "0+")


class DeleteRecordsRequest(Message, key=21, kind="request", versions="0-2", flexible="2+"):
    topics: list[DeleteRecordsTopic] = row([DeleteRecordsTopic], "0+")
    timeout_ms: int = row("int32", "0+")


class DeleteRecordsPartitionResult(Struct):
    partition_index: int = row("int32", "0+")
    low_watermark: int = row("int64", "0+")
    error_code: int = row("int16", "0+")


class DeleteRecordsTopicResult(Struct):
    name: str = row("string", "0+")
    partitions: list[DeleteRecordsPartitionResult] = row([DeleteRecordsPartitionResult], "0+")


class DeleteRecordsResponse(Message, key=21, kind="response", versions="0-2", flexible="2+"):
    throttle_time_ms: int = row("int32", "0+")
    topics: list[DeleteRecordsTopicResult] = row([DeleteRecordsTopicResult], "0+")
