"""The validation of a produced batch before it is appended.

On an ordinary topic only the header is parsed and the CRC computed. The records are decompressed and walked
(slow_validation.py) only if necessary: on compacted topics (no null keys), for a compression.type of the topic, for
timestamps in the header that contradict each other or the limits, and with kbroker.record.validation=full or
max.decompressed.message.bytes. The error
codes, and the order of the checks, are those of Apache Kafka 4.4.0.
"""

from struct import Struct
from typing import NoReturn

from kbroker.common import KafkaError
from kbroker.config import TopicConfig
from kbroker.config.definitions.log import MAX_ARRAY_BYTES
from kbroker.replica.produce.record_rules import ValidatedBatch, WritableBatch, invalid_record, too_large
from kbroker.replica.produce.slow_validation import MAX_DECOMPRESSED, validate_small
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
    parse_header,
    patch_max_timestamp,
)
from protocol.records.checksum import crc32c
from protocol.records.compression import CODEC_NAMES, ZSTD
from protocol.records.record import MIN_RECORD_BYTES

FIRST_VERSION_WITH_ZSTD = 7

# Sizes of the message formats before v2.
_SMALLEST_MESSAGE = 14
_LENGTH = Struct(">i")


class NotOneBatchError(KafkaError):
    """The records of a partition are not exactly one record batch."""


def validate_batch(
    records: memoryview | None, config: "TopicConfig", now_ms: int, produce_version: int, transactional: bool = False
) -> ValidatedBatch:
    """Validate the records of one partition in a Produce request, and convert them if the topic requires that.

    Returns the batch to append in a writable buffer (the one of `records` if possible), its header, and the log append
    time in ms (-1 if the timestamps are the producer's). `transactional`: the request has a transactional id. Raises
    KafkaError, and AppendMustWait for records whose validation takes a long time.
    """
    if records is None:
        raise _not_one_batch("No records were sent for the partition.")
    try:
        header = parse_header(records)
    except MalformedError:
        _refuse_fragment(records)
    (
        base_offset, length, _, magic, crc, attributes, last_offset_delta, base_timestamp, max_timestamp, producer_id,
        _, base_sequence, count,
    ) = header  # fmt: skip
    size = length + LENGTH_OVERHEAD
    if size != len(records) or magic != MAGIC or size < HEADER_SIZE:
        records = _only_batch(records)
        size = len(records)
    if attributes & TRANSACTIONAL and not transactional:
        # The producer is authorized by its transactional id.
        raise KafkaError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    codec = attributes & CODEC_MASK
    if codec == ZSTD and produce_version < FIRST_VERSION_WITH_ZSTD:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
            f"Produce requests of version {produce_version} may not use zstd compression.",
        )
    if base_offset != 0:
        raise invalid_record(f"The base offset of a produced batch should be 0, but it is {base_offset}.")
    if size > config.max_message_bytes:
        raise too_large(size, config)
    if crc32c(records[CRC_START:]) != crc:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, "The record batch does not match its CRC.")
    # The log assigns `count` offsets, so the batch must be able to contain as many records.
    max_body_size = MAX_DECOMPRESSED if codec else size - HEADER_SIZE
    if (
        not 0 < count <= max_body_size // MIN_RECORD_BYTES
        or last_offset_delta != count - 1
        or (producer_id >= 0 and base_sequence < 0)
        or codec > ZSTD
    ):
        _refuse_header(header)
    if attributes & CONTROL:
        raise invalid_record("Clients are not allowed to write control records.")
    batch: WritableBatch = records if not records.readonly else bytearray(records)
    compression_type = config.compression_type
    if (
        (compression_type != "producer" and compression_type != CODEC_NAMES[codec])
        or "compact" in config.cleanup_policy
        or config.kbroker_record_validation == "full"
        or (codec and config.max_decompressed_message_bytes < MAX_ARRAY_BYTES)
    ):
        return validate_small(batch, header, config, now_ms)
    if config.message_timestamp_type == "LogAppendTime":
        if attributes & LOG_APPEND_TIME:
            return validate_small(batch, header, config, now_ms)
        patch_max_timestamp(batch, 0, size, attributes | LOG_APPEND_TIME, now_ms)
        return batch, parse_header(batch), now_ms
    if (
        max_timestamp < base_timestamp
        or max_timestamp > now_ms + config.message_timestamp_after_max_ms
        or base_timestamp < now_ms - config.message_timestamp_before_max_ms
        or attributes & LOG_APPEND_TIME
    ):
        return validate_small(batch, header, config, now_ms)
    return batch, header, NO_TIMESTAMP


# Errors of invalid headers.


def _not_one_batch(message: str) -> KafkaError:
    return NotOneBatchError(ErrorCode.INVALID_RECORD, message)


def _refuse_header(header: BatchHeader) -> NoReturn:
    """Raise the error for a header that contradicts itself."""
    if header.codec > ZSTD:
        # In Kafka this is an unexpected error, with this code.
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"Unknown compression type {header.codec}.")
    if header.count <= 0 or header.last_offset_delta != header.count - 1:
        raise invalid_record(f"{header.count} records do not agree with last offset delta {header.last_offset_delta}.")
    if header.producer_id < 0 or header.base_sequence >= 0:
        raise invalid_record(f"A record batch of {header.size} bytes cannot hold {header.count} records.")
    raise invalid_record(f"Invalid sequence number {header.base_sequence} of producer {header.producer_id}.")


def _refuse_fragment(records: memoryview) -> NoReturn:
    """Raise the error for fewer bytes than a header of format v2, such as an older message or nothing at all."""
    _only_batch(records)
    raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"A record batch cannot have {len(records)} bytes.")


def _only_batch(records: memoryview) -> memoryview:
    """Return the first batch, if it is complete, of format v2, and not followed by another complete batch."""
    size = _size_at(records, 0)
    if size is None or size > len(records):
        raise _not_one_batch("Produce requests must have a whole record batch for each partition.")
    if records[MAGIC_POS] != MAGIC:
        raise _not_one_batch(f"Produce requests must have batches of magic {MAGIC}, not {records[MAGIC_POS]}.")
    next_size = _size_at(records, size)
    if next_size is not None and size + next_size <= len(records):
        raise _not_one_batch("Produce requests must have exactly one record batch for each partition.")
    if size < HEADER_SIZE:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"A record batch cannot have {size} bytes.")
    return records[:size]


def _size_at(records: memoryview, pos: int) -> int | None:
    """Return the size of the batch or older message at `pos`; None if its length field is incomplete."""
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
