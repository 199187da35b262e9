"""Checks of a produced batch before it is appended: what a broker must know, from the header where it can.

On an ordinary topic nothing but the header is read and the CRC computed. The records are walked, decompressed
within bounds, only where something needs them (records.py): compacted topics (no null keys), a topic's own codec,
timestamps in the header that are out of bounds or contradict each other, and kbroker.record.validation=full. The
error codes, and the order of the checks, are those that Apache Kafka 4.3.1 answers with.
"""

from struct import Struct
from typing import TYPE_CHECKING, NoReturn

from kbroker.common import KafkaError
from kbroker.replica.produce.record_validation import MAX_DECOMPRESSED, Batch, Validated, invalid, look_into, too_large
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
from protocol.records.compression import CODEC_NAMES, ZSTD
from protocol.records.crc import crc32c

if TYPE_CHECKING:
    from kbroker.config import TopicConfig

FIRST_VERSION_WITH_ZSTD = 7

_SMALLEST_MESSAGE = 14
_SMALLEST_RECORD = 7  # its length, attributes, two deltas, key, value and headers take a byte each at least
_LENGTH = Struct(">i")


class NotOneBatchError(KafkaError):
    """What was sent is not one record batch, so that no log is asked about it."""


def validate(
    records: memoryview | None,
    config: "TopicConfig",
    now_ms: int,
    produce_version: int,
    transactional: bool = False,
) -> Validated:
    """Check the records that a client produced to one partition, which must be one batch.

    Gives the batch as it is to be appended, in a writable buffer (that of `records`, when it is one and nothing
    was converted), its header, and the log append time in ms, -1 if timestamps are the client's own. `transactional`:
    the request names its transactional id.
    Raises KafkaError with the code for the client, and Unfinished where the records have to be looked into and that
    takes longer than others may be kept waiting.
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
    if attributes & TRANSACTIONAL and not transactional:
        # Only a request that names its transactional id may carry them, and is authorized by it.
        raise KafkaError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    codec = attributes & CODEC_MASK
    if codec == ZSTD and produce_version < FIRST_VERSION_WITH_ZSTD:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
            f"Produce requests of version {produce_version} may not use zstd compression.",
        )
    if header[0] != 0:
        raise invalid(f"The base offset of a produced batch should be 0, but it is {header.base_offset}.")
    if size > config.max_message_bytes:
        raise too_large(size, config)
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
        raise invalid("Clients are not allowed to write control records.")
    batch: Batch = records if not records.readonly else bytearray(records)
    target = config.compression_type
    if (
        (target != "producer" and target != CODEC_NAMES[codec])
        or "compact" in config.cleanup_policy
        or config.kbroker_record_validation == "full"
    ):
        return look_into(batch, header, config, now_ms)
    if config.message_timestamp_type == "LogAppendTime":
        if attributes & LOG_APPEND_TIME:
            return look_into(batch, header, config, now_ms)
        patch_max_timestamp(batch, 0, size, attributes | LOG_APPEND_TIME, now_ms)
        return batch, parse_header(batch), now_ms
    base, latest = header[7], header[8]
    if (
        latest < base
        or latest > now_ms + config.message_timestamp_after_max_ms
        or base < now_ms - config.message_timestamp_before_max_ms
        or attributes & LOG_APPEND_TIME
    ):
        return look_into(batch, header, config, now_ms)
    return batch, header, NO_TIMESTAMP


# Refusals by the header.


def _not_one(message: str) -> KafkaError:
    return NotOneBatchError(ErrorCode.INVALID_RECORD, message)


def _refuse_header(header: BatchHeader) -> NoReturn:
    """Name what contradicts itself in a header whose CRC is right."""
    if header.codec > ZSTD:
        # Kafka fails unexpectedly here, and so answers with this code.
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"Unknown compression type {header.codec}.")
    if header.count <= 0 or header.last_offset_delta != header.count - 1:
        raise invalid(f"{header.count} records do not agree with last offset delta {header.last_offset_delta}.")
    if header.producer_id < 0 or header.base_sequence >= 0:
        raise invalid(f"A record batch of {header.size} bytes cannot hold {header.count} records.")
    raise invalid(f"Invalid sequence number {header.base_sequence} of producer {header.producer_id}.")


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
