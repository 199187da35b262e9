"""ForwardRecords: batches of a closing partition for one that remains, between brokers only. Kafka has no such API.

The records are v2 batches. `last_position`: of the last batch of their producer that is stored.
"""

from protocol.schema.message import Message, row


class ForwardRecordsRequest(Message, key=10020, kind="request", versions="0", flexible="0+"):
    topic_id: bytes = row("uuid", "0+")
    partition_index: int = row("int32", "0+")
    records: bytes = row("bytes", "0+")


class ForwardRecordsResponse(Message, key=10020, kind="response", versions="0", flexible="0+"):
    throttle_time_ms: int = row("int32", "0+")
    error_code: int = row("int16", "0+")
    error_message: str | None = row("string", "0+", nullable="0+", default=None)
    last_position: int = row("int64", "0+", default=-1)
