"""DelayedRecords: list the pending records of a partition, cancel them, deliver them now. Kafka has no such API.

Operations: 0 lists, 1 cancels, 2 delivers.
"""

from protocol.schema.message import Message, Struct, row


class DelayedRecordsRequest(Message, key=10011, kind="request", versions="0", flexible="0+"):
    topic_name: str = row("string", "0+")
    partition_index: int = row("int32", "0+")
    operation: int = row("int8", "0+")
    # Of the records to cancel or to deliver.
    offsets: list[int] = row(["int64"], "0+")
    # A list begins after this record, at the first one with a negative offset.
    after_due_ms: int = row("int64", "0+", default=-1)
    after_offset: int = row("int64", "0+", default=-1)
    max_records: int = row("int32", "0+")
    include_payload: bool = row("bool", "0+")
    timeout_ms: int = row("int32", "0+", default=30000)


class DelayedRecordHeader(Struct):
    name: bytes = row("bytes", "0+")
    value: bytes | None = row("bytes", "0+", nullable="0+", default=None)


class DelayedRecord(Struct):
    offset: int = row("int64", "0+")
    due_ms: int = row("int64", "0+")
    timestamp_ms: int = row("int64", "0+")
    key: bytes | None = row("bytes", "0+", nullable="0+", default=None)
    value: bytes | None = row("bytes", "0+", nullable="0+", default=None)
    # -1 for null.
    value_size: int = row("int32", "0+")
    headers: list[DelayedRecordHeader] = row([DelayedRecordHeader], "0+")
    # The offset from which retention has moved the record: a page before may have it there.
    moved_from: int = row("int64", "0+", default=-1, tag=0)


class DelayedRecordResult(Struct):
    offset: int = row("int64", "0+")
    error_code: int = row("int16", "0+")
    error_message: str | None = row("string", "0+", nullable="0+", default=None)


class DelayedRecordsResponse(Message, key=10011, kind="response", versions="0", flexible="0+"):
    throttle_time_ms: int = row("int32", "0+")
    error_code: int = row("int16", "0+")
    error_message: str | None = row("string", "0+", nullable="0+", default=None)
    pending_count: int = row("int64", "0+")
    open_transaction_count: int = row("int64", "0+")
    first_due_ms: int = row("int64", "0+", default=-1)
    records: list[DelayedRecord] = row([DelayedRecord], "0+")
    has_more: bool = row("bool", "0+")
    results: list[DelayedRecordResult] = row([DelayedRecordResult], "0+")
