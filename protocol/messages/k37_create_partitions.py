"""CreatePartitions: raise the partition count of topics; `count` is the new total.

3: the error THROTTLING_QUOTA_EXCEEDED.
"""

from protocol.schema.message import Message, Struct, row


class CreatePartitionsAssignment(Struct):
    broker_ids: list[int] = row(["int32"], "0+")


class CreatePartitionsTopic(Struct):
    name: str = row("string", "0+")
    count: int = row("int32", "0+")
    assignments: list[CreatePartitionsAssignment] | None = row([CreatePartitionsAssignment], "0+", nullable="0+")


class CreatePartitionsRequest(Message, key=37, kind="request", versions="0-3", flexible="2+"):
    topics: list[CreatePartitionsTopic] = row([CreatePartitionsTopic], "0+")
    timeout_ms: int = row("int32", "0+")
    validate_only: bool = row("bool", "0+")


class CreatePartitionsTopicResult(Struct):
    name: str = row("string", "0+")
    error_code: int = row("int16", "0+")
    error_message: str | None = row("string", "0+", nullable="0+", default=None)


class CreatePartitionsResponse(Message, key=37, kind="response", versions="0-3", flexible="2+"):
    throttle_time_ms: int = row("int32", "0+")
    results: list[CreatePartitionsTopicResult] = row([CreatePartitionsTopicResult], "0+")
