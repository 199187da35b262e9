"""RemovePartitions: remove or close the highest partitions of a topic. Kafka has no such API.

A `partition_count` of -1 changes nothing. `outcome`: 0 removed, 1 closing, 2 open again. `first_closing`:
-1 if none is.
"""

from protocol.schema.message import Message, row


class RemovePartitionsRequest(Message, key=10010, kind="request", versions="0", flexible="0+"):
    topic_name: str = row("string", "0+")
    partition_count: int = row("int32", "0+")


class RemovePartitionsResponse(Message, key=10010, kind="response", versions="0", flexible="0+"):
    throttle_time_ms: int = row("int32", "0+")
    error_code: int = row("int16", "0+")
    error_message: str | None = row("string", "0+", nullable="0+", default=None)
    outcome: int = row("int8", "0+")
    first_closing: int = row("int32", "0+", default=-1)
