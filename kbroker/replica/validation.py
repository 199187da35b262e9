"""Checks of a produced batch before it is appended: what a broker must know, from the header where it can.

On an ordinary topic nothing but the header is read and the CRC computed. The records are walked, decompressed
within bounds, only where something needs them: compacted topics (no null keys), a topic's own codec, timestamps
in the header that are out of bounds or contradict each other, and kbroker.record.validation=full. The error
codes, and the order of the checks, are those that Apache Kafka 4.3.1 answers with.
"""

from struct import Struct
from typing import TYPE_CHECKING, NoReturn

from kbroker.model import Buffer, KafkaError
from protocol.errors import ErrorCode, MalformedError
from protocol.records.batch import (
    CODEC_MASK,
    CONTROL,
    CRC_START,
    HEADER_SIZE,
    LENGTH_OVERHEAD,
    LOG_APPEND_TIME,
    MAGIC,
    MAGIC_POS,
    NO_TIMESTAMP,
    TRANSACTIONAL,
    BatchHeader,
    assemble_batch,
    body_of,
    parse_header,
    patch_max_timestamp,
)
from protocol.records.compression import NAMES, ZSTD, TooLargeError, compress, decompress
from protocol.records.crc import crc32c
from protocol.records.record import iter_records

if TYPE_CHECKING:
    from kbroker.config import TopicConfig

Batch = memoryview | bytearray
RecordErrors = list[tuple[int, str | None]]

FIRST_VERSION_WITH_ZSTD = 7
# Bounds on what one batch makes us hold: its records decompressed, and the errors that we tell about them.
MAX_DECOMPRESSED = 64 * 1024 * 1024
MAX_RECORD_ERRORS = 1000

_SMALLEST_MESSAGE = 14
_SMALLEST_RECORD = 7  # its length, attributes, two deltas, key, value and headers take a byte each at least
_LENGTH = Struct(">i")


class NotOneBatchError(KafkaError):
    """What was sent is not one record batch, so that no log is asked about it."""


class InvalidRecordsError(KafkaError):
    """A batch is refused for some of its records: `record_errors` has (index in the batch, reason) of each."""

    def __init__(self, code: ErrorCode, message: str, record_errors: RecordErrors) -> None:
        super().__init__(code, message)
        self.record_errors = record_errors


def validate(
    records: memoryview | None, config: "TopicConfig", now_ms: int, *, produce_version: int
) -> tuple[Batch, BatchHeader, int]:
    """Check the records that a client produced to one partition, which must be one batch.

    Gives the batch as it is to be appended, in a writable buffer (that of `records`, when it is one and nothing
    was converted), its header, and the log append time in ms, -1 if timestamps are the client's own.
    Raises KafkaError with the code for the client.
    """
    if records is None:
        raise _not_one("No records were sent for the partition.")
    try:
        header = parse_header(records)
    except MalformedError:
        _refuse_fragment(records)
    size = header[1] + LENGTH_OVERHEAD
    if size != len(records) or header[3] != MAGIC or size < HEADER_SIZE:
        records = _only_batch(records)
        size = len(records)
    attributes = header[5]
    if attributes & TRANSACTIONAL:
        # Only a request that names its transactional id may carry them, and is authorized by it.
        raise KafkaError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    codec = attributes & CODEC_MASK
    if codec == ZSTD and produce_version < FIRST_VERSION_WITH_ZSTD:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
            f"Produce requests of version {produce_version} may not use zstd compression.",
        )
    if header[0] != 0:
        raise _invalid(f"The base offset of a produced batch should be 0, but it is {header.base_offset}.")
    if size > config.max_message_bytes:
        raise _too_large(size, config)
    if crc32c(records[CRC_START:]) != header[4]:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, "The record batch does not match its CRC.")
    count = header[12]
    # Offsets are given out by this count, so it must be possible.
    room = MAX_DECOMPRESSED if codec else size - HEADER_SIZE
    if (
        not 0 < count <= room // _SMALLEST_RECORD
        or header[6] != count - 1
        or (header[9] >= 0 and header[11] < 0)
        or codec > ZSTD
    ):
        _refuse_header(header)
    if attributes & CONTROL:
        raise _invalid("Clients are not allowed to write control records.")
    batch: Batch = records if not records.readonly else bytearray(records)
    target = config.compression_type
    if (
        (target != "producer" and target != NAMES[codec])
        or "compact" in config.cleanup_policy
        or config.kbroker_record_validation == "full"
    ):
        return _validate_records(batch, header, config, now_ms)
    if config.message_timestamp_type == "LogAppendTime":
        if attributes & LOG_APPEND_TIME:
            return _validate_records(batch, header, config, now_ms)
        patch_max_timestamp(batch, 0, size, attributes | LOG_APPEND_TIME, now_ms)
        return batch, parse_header(batch), now_ms
    base, latest = header[7], header[8]
    if (
        latest < base
        or latest > now_ms + config.message_timestamp_after_max_ms
        or base < now_ms - config.message_timestamp_before_max_ms
        or attributes & LOG_APPEND_TIME
    ):
        return _validate_records(batch, header, config, now_ms)
    return batch, header, NO_TIMESTAMP


# Refusals by the header.


def _invalid(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_RECORD, message)


def _not_one(message: str) -> KafkaError:
    return NotOneBatchError(ErrorCode.INVALID_RECORD, message)


def _too_large(size: int, config: "TopicConfig") -> KafkaError:
    return KafkaError(
        ErrorCode.MESSAGE_TOO_LARGE,
        f"The record batch has {size} bytes; max.message.bytes is {config.max_message_bytes}.",
    )


def _refuse_header(header: BatchHeader) -> NoReturn:
    """Name what contradicts itself in a header whose CRC is right."""
    if header.codec > ZSTD:
        # Kafka fails unexpectedly here, and so answers with this code.
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"Unknown compression type {header.codec}.")
    if header.count <= 0 or header.last_offset_delta != header.count - 1:
        raise _invalid(f"{header.count} records do not agree with last offset delta {header.last_offset_delta}.")
    if header.producer_id < 0 or header.base_sequence >= 0:
        raise _invalid(f"A record batch of {header.size} bytes cannot hold {header.count} records.")
    raise _invalid(f"Invalid sequence number {header.base_sequence} of producer {header.producer_id}.")


def _refuse_fragment(records: memoryview) -> NoReturn:
    """Fewer bytes than a header of format v2: perhaps a batch of another format, or nothing at all."""
    _only_batch(records)
    raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"A record batch cannot have {len(records)} bytes.")


def _only_batch(records: memoryview) -> memoryview:
    """The first batch, if it is whole, of format v2, and no other whole batch follows. A cut-off one is dropped."""
    size = _size_at(records, 0)
    if size is None or size > len(records):
        raise _not_one("Produce requests must have a whole record batch for each partition.")
    if records[MAGIC_POS] != MAGIC:
        raise _not_one(f"Produce requests must have batches of magic {MAGIC}, not {records[MAGIC_POS]}.")
    following = _size_at(records, size)
    if following is not None and size + following <= len(records):
        raise _not_one("Produce requests must have exactly one record batch for each partition.")
    if size < HEADER_SIZE:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"A record batch cannot have {size} bytes.")
    return records[:size]


def _size_at(records: memoryview, pos: int) -> int | None:
    """Bytes of the batch or legacy message at `pos` by its length field; None if too little is there to know."""
    left = len(records) - pos
    if left < LENGTH_OVERHEAD:
        return None
    length: int = _LENGTH.unpack_from(records, pos + 8)[0]
    if length < _SMALLEST_MESSAGE:
        raise KafkaError(
            ErrorCode.CORRUPT_MESSAGE,
            f"Record size {length} is less than the minimum record overhead ({_SMALLEST_MESSAGE})",
        )
    if left <= MAGIC_POS:
        return None
    if records[pos + MAGIC_POS] > MAGIC:
        magic = (records[pos + MAGIC_POS] ^ 0x80) - 0x80
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"Invalid magic found in record: {magic}")
    return length + LENGTH_OVERHEAD


# The slow way: records are decompressed and walked.


def _validate_records(
    batch: Batch, header: BatchHeader, config: "TopicConfig", now_ms: int
) -> tuple[Batch, BatchHeader, int]:
    size = header.size
    limit = max(MAX_DECOMPRESSED, config.max_message_bytes)
    try:
        body = decompress(header.codec, body_of(batch, 0, size), limit)
    except TooLargeError as error:
        raise KafkaError(ErrorCode.MESSAGE_TOO_LARGE, f"The record batch has {error}.") from None
    except MalformedError as error:
        # As Kafka's unexpected failure of a codec.
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"Records cannot be decompressed: {error}.") from None
    try:
        latest = _walk(body, header, config, now_ms)
    except MalformedError as error:
        raise _invalid(f"Malformed records: {error}.") from None
    attributes = header.attributes & ~LOG_APPEND_TIME
    append_time = NO_TIMESTAMP
    if config.message_timestamp_type == "LogAppendTime":
        attributes |= LOG_APPEND_TIME
        append_time = latest = now_ms
    target = config.compression_type
    if target != "producer" and target != NAMES[header.codec]:
        batch = _convert(body, header, NAMES.index(target), attributes, latest, config)
        if len(batch) > config.max_message_bytes:
            raise _too_large(len(batch), config)
    elif attributes != header.attributes or latest != header.max_timestamp:
        patch_max_timestamp(batch, 0, size, attributes, latest)
    else:
        return batch, header, append_time
    return batch, parse_header(batch), append_time


def _walk(body: Buffer, header: BatchHeader, config: "TopicConfig", now_ms: int) -> int:
    """Check every record; gives the latest timestamp. Raises InvalidRecordsError, MalformedError."""
    keyed = "compact" in config.cleanup_policy
    stamped = header.is_log_append_time
    create_time = config.message_timestamp_type != "LogAppendTime"
    earliest = now_ms - config.message_timestamp_before_max_ms
    newest = now_ms + config.message_timestamp_after_max_ms
    latest = NO_TIMESTAMP
    errors: RecordErrors = []
    code = ErrorCode.INVALID_RECORD
    for index, record in enumerate(iter_records(body, header.count, header.base_timestamp)):
        timestamp = header.max_timestamp if stamped else record.timestamp
        latest = max(latest, timestamp)
        reason = None
        if header.codec and record.offset_delta != index:
            reason = f"Record {index} of a compressed batch has offset delta {record.offset_delta}."
        elif keyed and record.key is None:
            reason = "Compacted topic cannot accept message without key."
        elif create_time and timestamp != NO_TIMESTAMP:
            if not earliest <= timestamp <= newest:
                reason = (
                    f"Timestamp {timestamp} of message with offset {index} is out of range. "
                    f"The timestamp should be within [{earliest}, {newest}]"
                )
                code = ErrorCode.INVALID_TIMESTAMP
        elif stamped:
            reason = "Producer should not set timestamp type to LogAppendTime."
            code = ErrorCode.INVALID_TIMESTAMP
        if reason is not None and len(errors) < MAX_RECORD_ERRORS:
            errors.append((index, reason))
    if errors:
        kind = "invalid timestamp" if code == ErrorCode.INVALID_TIMESTAMP else f"record errors: {errors[0][1]}"
        raise InvalidRecordsError(code, f"One or more records have been rejected due to {kind}", errors)
    return latest


def _convert(
    body: Buffer,
    header: BatchHeader,
    codec: int,
    attributes: int,
    latest: int,
    config: "TopicConfig",
) -> bytearray:
    """The batch anew in the codec of the topic's compression.type."""
    levels = (
        None,
        config.compression_gzip_level,
        None,
        config.compression_lz4_level,
        config.compression_zstd_level,
    )
    return assemble_batch(
        compress(codec, body, levels[codec]),
        count=header.count,
        last_offset_delta=header.last_offset_delta,
        base_timestamp=header.base_timestamp,
        max_timestamp=latest,
        attributes=attributes & ~CODEC_MASK | codec,
        leader_epoch=header.leader_epoch,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
    )
