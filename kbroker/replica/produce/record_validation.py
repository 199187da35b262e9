"""Looking into the records of a produced batch: what takes long is done a part at a time, or in a thread.

A batch of a kilobyte may decompress to a gigabyte, or hold a million records, and the loop serves everybody else. So
the work is a generator. What a small batch takes it does at once; from then on it asks: None is for a turn of the
others, a Demand for something to be done in a thread. Lane (lane.py) works such batches off.
"""

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, NamedTuple

from kbroker.common import Buffer, KafkaError
from protocol.errors import ErrorCode, MalformedError
from protocol.records.batch import (
    CODEC_MASK,
    LOG_APPEND_TIME,
    NO_TIMESTAMP,
    BatchHeader,
    assemble_batch,
    body_of,
    parse_header,
    patch_max_timestamp,
)
from protocol.records.compression import (
    CODEC_NAMES,
    GZIP,
    NONE,
    TooLargeError,
    compress,
    decompress,
    decompress_mapped,
)
from protocol.records.record import MAX_HEADERS, MIN_RECORD_BYTES, decode_varint

if TYPE_CHECKING:
    from kbroker.config import TopicConfig

Batch = memoryview | bytearray
# A batch as it is to be appended, its header, and the log append time in ms, -1 if timestamps are the client's own.
Validated = tuple[Batch, BatchHeader, int]
RecordErrors = list[tuple[int, str | None]]

MIB = 1 << 20
# Bounds on what one batch makes us hold: its records decompressed, and the errors that we tell about them.
MAX_DECOMPRESSED = 24 * MIB
MAX_RECORD_ERRORS = 1000
# What is decompressed at once, by the codec, and what it may become. An empty member of gzip has twenty bytes and takes
# 5 us, a block of zstd has three and takes 10 ns.
SMALL = 16 * 1024
SMALL_GZIP = 1024
SMALL_DECOMPRESSED = 64 * 1024
# What may be held decompressed for many batches at a time. A larger one has to wait until it is the only such.
MEDIUM_DECOMPRESSED = MIB
# Records and record headers that are walked before others have their turn: a tenth of a millisecond.
SLICE = 128

_EARLIEST, _SPAN = -(1 << 63), 1 << 64


class Demand(NamedTuple):
    """To be called in a thread. `large`: with its result, more than MEDIUM_DECOMPRESSED may be held."""

    large: bool
    work: Callable[..., Buffer]
    arguments: tuple[object, ...]


Work = Generator[Demand | None, Buffer | None, Validated]


class Unfinished(Exception):
    """There is more to do for a batch than may be done at once. `work` goes on with `asked`."""

    def __init__(self, work: Work, asked: Demand | None) -> None:
        super().__init__("a batch whose records take longer")
        self.work = work
        self.asked = asked


class InvalidRecordsError(KafkaError):
    """A batch is refused for some of its records: `record_errors` has (index in the batch, reason) of each."""

    def __init__(self, code: ErrorCode, message: str, record_errors: RecordErrors) -> None:
        super().__init__(code, message)
        self.record_errors = record_errors


def invalid(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_RECORD, message)


def too_large(size: int, config: "TopicConfig") -> KafkaError:
    return KafkaError(
        ErrorCode.MESSAGE_TOO_LARGE,
        f"The record batch has {size} bytes; max.message.bytes is {config.max_message_bytes}.",
    )


def look_into(batch: Batch, header: BatchHeader, config: "TopicConfig", now_ms: int) -> Validated:
    """Check the records, and convert them if the topic wants that. Raises KafkaError, and Unfinished."""
    # The frame's buffer is somebody else's as soon as this returns.
    work = _work(bytearray(batch), header, config, now_ms)
    try:
        asked = next(work)
    except StopIteration as done:
        validated: Validated = done.value
        return validated
    raise Unfinished(work, asked)


def _work(batch: Batch, header: BatchHeader, config: "TopicConfig", now_ms: int) -> Work:
    size = header.size
    limit = max(MAX_DECOMPRESSED, config.max_message_bytes)
    try:
        body = yield from _decompressed(header.codec, body_of(batch, 0, size), limit)
    except TooLargeError as error:
        raise KafkaError(ErrorCode.MESSAGE_TOO_LARGE, f"The record batch has {error}.") from None
    except MalformedError as error:
        # As Kafka's unexpected failure of a codec.
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"Records cannot be decompressed: {error}.") from None
    try:
        latest = yield from _walk(body, header, config, now_ms)
    except MalformedError as error:
        raise invalid(f"Malformed records: {error}.") from None
    attributes = header.attributes & ~LOG_APPEND_TIME
    append_time = NO_TIMESTAMP
    if config.message_timestamp_type == "LogAppendTime":
        attributes |= LOG_APPEND_TIME
        append_time = latest = now_ms
    target = config.compression_type
    if target != "producer" and target != CODEC_NAMES[header.codec]:
        codec = CODEC_NAMES.index(target)
        packed = yield from _compressed(codec, body, config)
        batch = _rebuilt(packed, header, attributes & ~CODEC_MASK | codec, latest)
        if len(batch) > config.max_message_bytes:
            raise too_large(len(batch), config)
    elif attributes != header.attributes or latest != header.max_timestamp:
        patch_max_timestamp(batch, 0, size, attributes, latest)
    else:
        return batch, header, append_time
    return batch, parse_header(batch), append_time


def _decompressed(codec: int, data: memoryview, limit: int) -> Generator[Demand | None, Buffer | None, Buffer]:
    """Raises MalformedError, and TooLargeError beyond `limit` bytes."""
    if codec == NONE:
        # Bytes are read faster than a memoryview.
        return bytes(data) if len(data) <= SMALL_DECOMPRESSED else data
    if len(data) <= (SMALL_GZIP if codec == GZIP else SMALL):
        try:
            return decompress(codec, data, SMALL_DECOMPRESSED)
        except TooLargeError:
            pass
    for most, large in ((MEDIUM_DECOMPRESSED, False), (limit, True)):
        try:
            body = yield Demand(large, decompress_mapped, (codec, data, most))
        except TooLargeError:
            if large:
                raise
        else:
            assert body is not None
            return body
    raise AssertionError("what is large was neither taken nor refused")


def _compressed(codec: int, body: Buffer, config: "TopicConfig") -> Generator[Demand | None, Buffer | None, Buffer]:
    """The records in the codec of the topic's compression.type."""
    if codec == NONE and len(body) > config.max_message_bytes:
        raise too_large(len(body), config)
    levels = (None, config.compression_gzip_level, None, config.compression_lz4_level, config.compression_zstd_level)
    if len(body) <= SMALL:
        return compress(codec, body, levels[codec])
    packed = yield Demand(len(body) > MEDIUM_DECOMPRESSED, compress, (codec, body, levels[codec]))
    assert packed is not None
    return packed


def _rebuilt(packed: Buffer, header: BatchHeader, attributes: int, latest: int) -> bytearray:
    return assemble_batch(
        packed,
        count=header.count,
        last_offset_delta=header.last_offset_delta,
        base_timestamp=header.base_timestamp,
        max_timestamp=latest,
        attributes=attributes,
        leader_epoch=header.leader_epoch,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
    )


def _walk(body: Buffer, header: BatchHeader, config: "TopicConfig", now_ms: int) -> Generator[None, None, int]:
    """Check every record; gives the latest timestamp. Raises InvalidRecordsError, MalformedError."""
    rules = Rules(header, config, now_ms)
    count, end = header.count, len(body)
    if not 0 <= count <= end // MIN_RECORD_BYTES:
        raise MalformedError(f"{count} records in {end} bytes")
    judge = rules.judge
    pos, left = 0, SLICE
    try:
        for index in range(count):
            left -= 1
            if left <= 0:
                yield
                left = SLICE
            size, start = decode_varint(body, pos)
            pos = start + size
            if size < MIN_RECORD_BYTES - 1 or pos > end:
                raise MalformedError(f"record of {size} bytes in {end - start} bytes")
            timestamp_delta, at = decode_varint(body, start + 1, 10)
            offset_delta, at = decode_varint(body, at)
            key, at = decode_varint(body, at)
            if key > 0:
                at += key
            value, at = decode_varint(body, at)
            if value > 0:
                at += value
            # A count of headers is the last byte of most records.
            if at != pos - 1 or body[at] != 0:
                at, left = yield from _walk_headers(body, at, pos, left)
                if at != pos:
                    raise MalformedError(f"record ends {pos - at} bytes before its length says")
            judge(index, timestamp_delta, offset_delta, key < 0)
    except IndexError:
        raise MalformedError("a record is cut off") from None
    if pos != end:
        raise MalformedError(f"{end - pos} bytes remain after {count} records")
    return rules.verdict()


def _walk_headers(body: Buffer, pos: int, end: int, left: int) -> Generator[None, None, tuple[int, int]]:
    """Gives (where the record's headers end, what is left of the slice)."""
    count, pos = decode_varint(body, pos)
    if not 0 <= count <= min((end - pos) // 2, MAX_HEADERS):
        raise MalformedError(f"{count} record headers in {end - pos} bytes")
    for _ in range(count):
        left -= 1
        if left <= 0:
            yield
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


class Rules:
    """What a topic asks of each record, and what was found."""

    __slots__ = (
        "_base", "_code", "_compressed", "_create_time", "_earliest", "_errors", "_keyed", "_latest", "_newest",
        "_stamp",
    )  # fmt: skip

    def __init__(self, header: BatchHeader, config: "TopicConfig", now_ms: int) -> None:
        self._base = header.base_timestamp
        # The time of every record of a batch that claims to have been stamped by a broker.
        self._stamp = header.max_timestamp if header.is_log_append_time else None
        self._compressed = bool(header.codec)
        self._keyed = "compact" in config.cleanup_policy
        self._create_time = config.message_timestamp_type != "LogAppendTime"
        self._earliest = now_ms - config.message_timestamp_before_max_ms
        self._newest = now_ms + config.message_timestamp_after_max_ms
        self._latest = NO_TIMESTAMP
        self._code = ErrorCode.INVALID_RECORD
        self._errors: RecordErrors = []

    def judge(self, index: int, timestamp_delta: int, offset_delta: int, null_key: bool) -> None:
        timestamp = self._base + timestamp_delta if self._stamp is None else self._stamp
        if not _EARLIEST <= timestamp < -_EARLIEST:
            # As a long of Java.
            timestamp = (timestamp - _EARLIEST) % _SPAN + _EARLIEST
        if timestamp > self._latest:
            self._latest = timestamp
        if self._compressed and offset_delta != index:
            self._refuse(index, f"Record {index} of a compressed batch has offset delta {offset_delta}.")
        elif self._keyed and null_key:
            self._refuse(index, "Compacted topic cannot accept message without key.")
        elif self._create_time and timestamp != NO_TIMESTAMP:
            if not self._earliest <= timestamp <= self._newest:
                self._code = ErrorCode.INVALID_TIMESTAMP
                self._refuse(
                    index,
                    f"Timestamp {timestamp} of message with offset {index} is out of range. "
                    f"The timestamp should be within [{self._earliest}, {self._newest}]",
                )
        elif self._stamp is not None:
            self._code = ErrorCode.INVALID_TIMESTAMP
            self._refuse(index, "Producer should not set timestamp type to LogAppendTime.")

    def _refuse(self, index: int, reason: str) -> None:
        if len(self._errors) < MAX_RECORD_ERRORS:
            self._errors.append((index, reason))

    def verdict(self) -> int:
        errors = self._errors
        if errors:
            kind = "invalid timestamp"
            if self._code != ErrorCode.INVALID_TIMESTAMP:
                kind = f"record errors: {errors[0][1]}"
            raise InvalidRecordsError(self._code, f"One or more records have been rejected due to {kind}", errors)
        return self._latest
