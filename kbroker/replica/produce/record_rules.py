"""The validation and conversion of the records in a produced batch, as pure functions.

`walk_records` checks every record. It calls `pause` after each slice of records, since a batch of a few hundred bytes
may contain a million of them. slow_validation.py decides what happens then.
"""

from collections.abc import Callable
from dataclasses import dataclass

from kbroker.common import Buffer, KafkaError
from kbroker.config import TopicConfig
from kbroker.config.definitions.log import MAX_ARRAY_BYTES
from protocol.errors import ErrorCode, MalformedError
from protocol.records.batch import (
    CODEC_MASK,
    LOG_APPEND_TIME,
    NO_TIMESTAMP,
    BatchHeader,
    parse_header,
    patch_max_timestamp,
    rebuild_batch,
)
from protocol.records.compression import CODEC_NAMES
from protocol.records.record import MAX_HEADERS, MIN_RECORD_BYTES, decode_varint

WritableBatch = memoryview | bytearray
# The batch to append, its header, and the log append time in ms (-1 if the timestamps are the producer's).
ValidatedBatch = tuple[WritableBatch, BatchHeader, int]
# `inspect` of an append extension (partition_extensions.py).
InspectRecords = Callable[[Buffer, BatchHeader, Callable[[], None]], object]
# (index in the batch, reason)
RecordErrors = list[tuple[int, str | None]]

MAX_RECORD_ERRORS = 1000
# Records and record headers that are walked without a pause. This takes a tenth of a millisecond.
SLICE = 128

_MIN_LONG, _LONG_RANGE = -(1 << 63), 1 << 64


@dataclass(slots=True, eq=False)
class InspectedBatch:
    """A validated batch whose records were walked for an append extension (partition_extensions.py).

    `inspection`: the result of the extension's `inspect`. `body`: the decompressed records, None if they are too large
    to keep. `rewritten`: (request, batch) that `RecordValidator.rewrite` has built from a large batch.
    """

    validated: ValidatedBatch
    inspect: InspectRecords
    inspection: object
    body: Buffer | None
    rewritten: tuple[object, bytearray] | None = None


class InvalidRecordsError(KafkaError):
    """The records in `record_errors` are invalid, so their batch is refused."""

    def __init__(self, code: ErrorCode, message: str, record_errors: RecordErrors) -> None:
        super().__init__(code, message)
        self.record_errors = record_errors


def invalid_record(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_RECORD, message)


def too_large(size: int, config: "TopicConfig") -> KafkaError:
    return KafkaError(
        ErrorCode.MESSAGE_TOO_LARGE,
        f"The record batch has {size} bytes; max.message.bytes is {config.max_message_bytes}.",
    )


def target_codec(header: BatchHeader, config: "TopicConfig") -> int:
    """Return the codec that the topic requires for the batch (compression.type)."""
    return header.codec if config.compression_type == "producer" else CODEC_NAMES.index(config.compression_type)


def convert(
    batch: WritableBatch,
    header: BatchHeader,
    config: "TopicConfig",
    now_ms: int,
    max_timestamp: int,
    recompressed: Buffer | None,
) -> ValidatedBatch:
    """Apply compression.type and message.timestamp.type to a batch whose records are valid.

    `max_timestamp`: the latest of its records. `recompressed`: the records in the topic's codec, if that differs.
    """
    attributes = header.attributes & ~LOG_APPEND_TIME
    append_time_ms = NO_TIMESTAMP
    if config.message_timestamp_type == "LogAppendTime":
        attributes |= LOG_APPEND_TIME
        append_time_ms = max_timestamp = now_ms
    if recompressed is not None:
        codec = target_codec(header, config)
        batch = rebuild_batch(
            header,
            recompressed,
            count=header.count,
            base_timestamp=header.base_timestamp,
            max_timestamp=max_timestamp,
            attributes=attributes & ~CODEC_MASK | codec,
        )
        if len(batch) > config.max_message_bytes:
            raise too_large(len(batch), config)
    elif attributes != header.attributes or max_timestamp != header.max_timestamp:
        patch_max_timestamp(batch, 0, header.size, attributes, max_timestamp)
    else:
        return batch, header, append_time_ms
    return batch, parse_header(batch), append_time_ms


def walk_records(
    body: Buffer, header: BatchHeader, config: "TopicConfig", now_ms: int, pause: Callable[[], None]
) -> int:
    """Check every record of a decompressed batch, and return the largest timestamp. Calls `pause` after each slice.

    Raises KafkaError(INVALID_RECORD) for malformed records, InvalidRecordsError for those that break the topic's rules.
    """
    try:
        return _walk_records(body, header, RecordRules(header, config, now_ms), pause)
    except MalformedError as error:
        raise invalid_record(f"Malformed records: {error}.") from None


def _walk_records(body: Buffer, header: BatchHeader, rules: "RecordRules", pause: Callable[[], None]) -> int:
    count, end = header.count, len(body)
    if not 0 <= count <= end // MIN_RECORD_BYTES:
        raise MalformedError(f"{count} records in {end} bytes")
    check, max_record_bytes = rules.check, rules.max_record_bytes
    pos, left = 0, SLICE
    try:
        for index in range(count):
            left -= 1
            if left <= 0:
                pause()
                left = SLICE
            size, start = decode_varint(body, pos)
            pos = start + size
            if size < MIN_RECORD_BYTES - 1 or pos > end:
                raise MalformedError(f"record of {size} bytes in {end - start} bytes")
            if size > max_record_bytes:
                raise invalid_record(f"Record {index} has {size} bytes; at most {max_record_bytes} are allowed.")
            timestamp_delta, at = decode_varint(body, start + 1, 10)
            offset_delta, at = decode_varint(body, at)
            key_size, at = decode_varint(body, at)
            if key_size > 0:
                at += key_size
            value_size, at = decode_varint(body, at)
            if value_size > 0:
                at += value_size
            # Most records end with a header count of 0.
            if at != pos - 1 or body[at] != 0:
                at, left = _walk_headers(body, at, pos, left, pause)
                if at != pos:
                    raise MalformedError(f"record ends {pos - at} bytes before its length says")
            check(index, timestamp_delta, offset_delta, key_size < 0)
    except IndexError:
        raise MalformedError("a record is cut off") from None
    if pos != end:
        raise MalformedError(f"{end - pos} bytes remain after {count} records")
    return rules.max_timestamp_if_valid()


def _walk_headers(body: Buffer, pos: int, end: int, left: int, pause: Callable[[], None]) -> tuple[int, int]:
    """Check a record's headers. Returns (position after them, number of records and headers left in the slice)."""
    count, pos = decode_varint(body, pos)
    if not 0 <= count <= min((end - pos) // 2, MAX_HEADERS):
        raise MalformedError(f"{count} record headers in {end - pos} bytes")
    for _ in range(count):
        left -= 1
        if left <= 0:
            pause()
            left = SLICE
        size, pos = decode_varint(body, pos)
        if size < 0 or pos + size > end:
            raise MalformedError(f"record header key of {size} bytes")
        size, pos = decode_varint(body, pos + size)
        if size > 0:
            pos += size
        if pos > end:
            raise MalformedError(f"record header of {size} bytes")
    return pos, left


class RecordRules:
    """Checks each record against the rules of its topic, and collects the errors."""

    __slots__ = (
        "_base_timestamp", "_code", "_errors", "_has_create_time", "_is_compressed", "_log_append_time",
        "_max_allowed_timestamp", "_max_timestamp", "_min_allowed_timestamp", "_requires_key", "max_record_bytes",
    )  # fmt: skip

    def __init__(self, header: BatchHeader, config: "TopicConfig", now_ms: int) -> None:
        self._base_timestamp = header.base_timestamp
        # The timestamp of all records, if the batch claims to have LogAppendTime.
        self._log_append_time = header.max_timestamp if header.is_log_append_time else None
        self._is_compressed = bool(header.codec)
        self.max_record_bytes = config.max_decompressed_message_bytes if header.codec else MAX_ARRAY_BYTES
        self._requires_key = config.is_compacted
        self._has_create_time = config.message_timestamp_type != "LogAppendTime"
        self._min_allowed_timestamp = now_ms - config.message_timestamp_before_max_ms
        self._max_allowed_timestamp = now_ms + config.message_timestamp_after_max_ms
        self._max_timestamp = NO_TIMESTAMP
        self._code = ErrorCode.INVALID_RECORD
        self._errors: RecordErrors = []

    def check(self, index: int, timestamp_delta: int, offset_delta: int, has_null_key: bool) -> None:
        timestamp = self._base_timestamp + timestamp_delta if self._log_append_time is None else self._log_append_time
        if not _MIN_LONG <= timestamp < -_MIN_LONG:
            # In Kafka the sum overflows, as Java's long does.
            timestamp = (timestamp - _MIN_LONG) % _LONG_RANGE + _MIN_LONG
        if timestamp > self._max_timestamp:
            self._max_timestamp = timestamp
        if self._is_compressed and offset_delta != index:
            self._add_error(index, f"Record {index} of a compressed batch has offset delta {offset_delta}.")
        elif self._requires_key and has_null_key:
            self._add_error(index, "Compacted topic cannot accept message without key.")
        elif self._has_create_time and timestamp != NO_TIMESTAMP:
            if not self._min_allowed_timestamp <= timestamp <= self._max_allowed_timestamp:
                self._code = ErrorCode.INVALID_TIMESTAMP
                self._add_error(
                    index,
                    f"Timestamp {timestamp} of message with offset {index} is out of range. "
                    f"The timestamp should be within [{self._min_allowed_timestamp}, {self._max_allowed_timestamp}]",
                )
        elif self._log_append_time is not None:
            self._code = ErrorCode.INVALID_TIMESTAMP
            self._add_error(index, "Producer should not set timestamp type to LogAppendTime.")

    def _add_error(self, index: int, reason: str) -> None:
        if len(self._errors) < MAX_RECORD_ERRORS:
            self._errors.append((index, reason))

    def max_timestamp_if_valid(self) -> int:
        """Return the largest timestamp of the records. Raises InvalidRecordsError."""
        errors = self._errors
        if errors:
            reason = "invalid timestamp"
            if self._code != ErrorCode.INVALID_TIMESTAMP:
                reason = f"record errors: {errors[0][1]}"
            raise InvalidRecordsError(self._code, f"One or more records have been rejected due to {reason}", errors)
        return self._max_timestamp
