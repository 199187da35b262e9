"""Reads complete batches from a log, by offset, and the aborted transactions in them.

The cost of a read depends neither on the length of the log nor on the number of batches that it returns. The position
cache has the start and the end of recent appends and reads. Otherwise offset_lookup.py finds the start, and the offset
index is used to find the last batches, so only the headers of about one index interval are read.

A read in a thread loads each attribute of the log once, since the event loop may append: segment.py says in which
order.
"""

from collections.abc import Sequence
from typing import cast

from kbroker.common import Buffer, KafkaError
from kbroker.storage.log.batch_scan import STEP
from kbroker.storage.log.indexes import WouldBlock, position_of, relative_offset_of
from kbroker.storage.log.log import Log
from kbroker.storage.log.offset_lookup import PositionCache, end_offset_of, find_batch
from kbroker.storage.log.segment import BULK_BYTES, FileSlice, LogSegment
from kbroker.storage.log.segment_indexes import SegmentGone
from kbroker.storage.log.transaction_index import AbortedTransaction
from protocol.errors import ErrorCode
from protocol.records.batch import HEADER_SIZE, LENGTH_OVERHEAD, parse_header

# The read ended at the end of the log, not at the limit of the request: the same read may return more later.
_NOT_LIMITED = -1
_MAX_ATTEMPTS = 100
# Headers are read in at most _MAX_CHUNKS chunks of this size.
_CHUNK_BYTES = 4096
_MAX_CHUNKS = 64
# In more data than this the offset index is used to find the last batches; in less, every header is read.
_INDEXED_BYTES = 8192


def read(log: Log, offset: int, max_bytes: int, max_offset: int, min_one: bool = True) -> Buffer | None:
    """Read complete batches of one segment, from the one that contains `offset` on and below `max_offset`.

    Returns None if that would wait for the disk: call `read_blocking` in a thread. The batches have at most
    `max_bytes`; with `min_one` the first one may be larger. Raises KafkaError: OFFSET_OUT_OF_RANGE, CORRUPT_MESSAGE,
    KAFKA_STORAGE_ERROR.
    """
    return cast("Buffer | None", read_or_slice(log, offset, max_bytes, max_offset, min_one, allow_slice=False))


def read_or_slice(
    log: Log, offset: int, max_bytes: int, max_offset: int, min_one: bool = True, *, allow_slice: bool = True
) -> Buffer | FileSlice | None:
    """Like `read`, but a large result may be a FileSlice, which is read when it is sent."""
    try:
        return _read_batches(log, offset, max_bytes, max_offset, min_one, False, allow_slice)
    except WouldBlock:
        return None
    except OSError as error:
        raise log.health.read_failed(error) from error


def read_blocking(log: Log, offset: int, max_bytes: int, max_offset: int, min_one: bool = True) -> Buffer:
    """Like `read`, but in a thread. Repeated if retention or compaction has removed the segment meanwhile."""
    for _ in range(_MAX_ATTEMPTS):
        try:
            return cast("Buffer", _read_batches(log, offset, max_bytes, max_offset, min_one, True))
        except SegmentGone:
            continue
        except OSError as error:
            raise log.health.read_failed(error) from error
    raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "segments keep disappearing")


def timestamp_at(log: Log, offset: int, wait: bool) -> int:
    """Return the largest timestamp of the first batch that reaches `offset`, in milliseconds; -1 if it has none.

    May be called in a thread. Without `wait` raises WouldBlock, with it SegmentGone. Raises KafkaError.
    """
    try:
        segments, positions = log.segments, log.positions
        segment, position = find_batch(log, segments, positions, max(offset, log.log_start_offset), wait)
        header = segment.read(HEADER_SIZE, position, wait)
    except OSError as error:
        raise log.health.read_failed(error) from error
    if len(header) < HEADER_SIZE:
        if not wait:
            raise WouldBlock
        raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, f"{offset} is not in the log")
    return parse_header(header).max_timestamp


def _read_batches(
    log: Log, offset: int, max_bytes: int, max_offset: int, min_one: bool, wait: bool, allow_slice: bool = False
) -> Buffer | FileSlice:
    """Read complete batches of one segment, from the one that contains `offset` on and below `max_offset`.

    They have at most `max_bytes`; with `min_one` the first batch may be larger. With `allow_slice` a large result may
    be a FileSlice. Without `wait` raises WouldBlock, with it SegmentGone. Raises KafkaError(OFFSET_OUT_OF_RANGE).
    """
    # The size is read first: segment.py explains why this matters in a thread.
    segments, positions = log.segments, log.positions
    active_size = segments[-1].size
    log_end_offset = log.log_end_offset
    if not log.log_start_offset <= offset <= log_end_offset:
        raise KafkaError(
            ErrorCode.OFFSET_OUT_OF_RANGE, f"{offset} is not in {log.log_start_offset} to {log_end_offset}"
        )
    if offset >= max_offset or offset == log_end_offset:
        return b""
    known = positions.find_read(offset, max_bytes, max_offset)
    if known is not None:
        segment, position, size = known
        available = size
    else:
        segment, position = find_batch(log, segments, positions, offset, wait)
        available, end_offset = _find_limit(log, segments, active_size, log_end_offset, segment, max_offset, wait)
        available -= position
        if available <= 0:
            return b""
        size = 0
        if available <= max_bytes:
            size = available
            if end_offset is not None:
                positions.add_read(offset, segment, position, size, end_offset, _NOT_LIMITED)
        elif not wait:
            end = _find_end(positions, segment, position, max_bytes, available, allow_slice)
            if end is not None:
                size, next_offset = end
                positions.add_read(offset, segment, position, size, next_offset, max_bytes)
    if size > max_bytes and not min_one:
        return b""
    if allow_slice and size >= BULK_BYTES:
        return segment.slice(position, size, log.health.read_failed)
    # The size is 0 if it is unknown: the end of the last complete batch is then found in what was read.
    wanted = size or min(available, max_bytes)
    data = segment.read(wanted, position, wait) if wanted > 0 else b""
    if size and len(data) == size:
        return data
    complete, next_offset = _measure_complete_batches(segment, data, position, wait)
    if complete:
        limit = max_bytes if len(data) == wanted else _NOT_LIMITED
        positions.add_read(offset, segment, position, complete, next_offset, limit)
        return memoryview(data)[:complete]
    if len(data) < wanted and not wait:
        raise WouldBlock
    if not min_one:
        return b""
    size, next_offset = _measure_first_batch(segment, data, position, available, wait)
    positions.add_read(offset, segment, position, size, next_offset, max_bytes)
    return _read_first_batch(log, segment, position, size, wait, allow_slice)


def _find_end(
    positions: PositionCache, segment: LogSegment, position: int, max_bytes: int, available: int, allow_slice: bool
) -> tuple[int, int] | None:
    """Return the size of a read, and the offset that follows it; None if they are unknown."""
    end = positions.find_append_end(segment, position, max_bytes)
    if end is None and allow_slice and max_bytes >= BULK_BYTES:
        end = _find_read_end(segment, position, max_bytes, available)
    return end


def _find_limit(
    log: Log,
    segments: Sequence[LogSegment],
    active_size: int,
    log_end_offset: int,
    segment: LogSegment,
    max_offset: int,
    wait: bool,
) -> tuple[int, int | None]:
    """Return the position up to which a segment may be read, and the offset there or None if it is unknown."""
    active, positions = segments[-1], log.positions
    end, end_offset = segment.size, segment.end_offset
    if segment is active:
        # In a thread, the event loop may append between reading the size and the log end offset.
        end, end_offset = active_size, None if wait else log_end_offset
    if max_offset < log_end_offset or (wait and segment is active and positions.may_be_beyond(active, max_offset)):
        last, last_position = find_batch(log, segments, positions, max_offset, wait)
        if last is segment:
            return last_position, max_offset
    return end, end_offset


def _read_first_batch(
    log: Log, segment: LogSegment, position: int, size: int, wait: bool, allow_slice: bool
) -> Buffer | FileSlice:
    """Read a first batch that is larger than the limit of the request."""
    if allow_slice and size >= BULK_BYTES:
        return segment.slice(position, size, log.health.read_failed)
    data = segment.read(size, position, wait)
    if len(data) == size:
        return data
    if not wait:
        raise WouldBlock
    raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"{segment.path()} is damaged at {position}")


def bytes_between(log: Log, start: int, end: int) -> int:
    """Return the number of bytes from the batch with offset `start` to that with `end`; 0 if that needs a disk read."""
    segments, positions = log.segments, log.positions
    active = segments[-1]
    try:
        first, position = find_batch(log, segments, positions, start, False)
        last, last_position = active, active.size
        if end < log.log_end_offset:
            last, last_position = find_batch(log, segments, positions, end, False)
    except (WouldBlock, KafkaError, OSError):
        return 0
    sizes = [segment.size for segment in segments if first.base_offset <= segment.base_offset < last.base_offset]
    return max(sum(sizes) - position + last_position, 0)


def find_aborted_transactions(log: Log, offset: int, size: int, wait: bool) -> list[AbortedTransaction] | None:
    """Return the aborted transactions that overlap `size` bytes from the batch with `offset` on, in marker order.

    A consumer of committed records needs them (KIP-98). Their markers follow, perhaps in later segments. The search
    ends at the first marker at which all records that were read were stable. Returns None if that would wait for the
    disk: call it with `wait` in a thread. Raises KafkaError(KAFKA_STORAGE_ERROR).
    """
    if offset > log.last_aborted_offset or not size:
        return []
    while True:
        found: list[AbortedTransaction] = []
        segments, positions = log.segments, log.positions
        try:
            first, _ = find_batch(log, segments, positions, offset, wait)
            upper = positions.next_offset_after(offset, size)
            if upper is None:
                upper = end_offset_of(log, first)
            for segment in segments:
                if segment.base_offset >= first.base_offset and segment.collect_aborted(offset, upper, wait, found):
                    break
        except SegmentGone:
            continue
        except WouldBlock:
            return None
        except ValueError as error:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error
        except OSError as error:
            raise log.health.read_failed(error) from error
        return found


def _find_read_end(segment: LogSegment, position: int, max_bytes: int, available: int) -> tuple[int, int] | None:
    """Return the size of the complete batches in `max_bytes` at `position`, and the offset that follows them.

    If the first batch is larger, the result is for that batch. Reads only headers near the end. Returns None if they
    contradict the index, exceed the `available` bytes or are too many. Raises WouldBlock.
    """
    end, last = position + max_bytes, position + available
    pos, expected_last_offset = position, None
    try:
        entry = segment.indexes.entry_at_position(end - HEADER_SIZE, False)
    except ValueError:
        return None
    if entry is not None and position_of(entry) > position:
        pos, expected_last_offset = position_of(entry), segment.base_offset + relative_offset_of(entry)
    next_offset = -1
    chunk: Buffer = b""
    chunk_start = pos
    chunks = 0
    while end - pos >= HEADER_SIZE or pos == position:
        at = pos - chunk_start
        if at + HEADER_SIZE > len(chunk):
            chunks += 1
            chunk = segment.read(min(_CHUNK_BYTES, last - pos), pos, False)
            chunk_start, at = pos, 0
            if len(chunk) < HEADER_SIZE or chunks > _MAX_CHUNKS:
                return None
        base, length, delta = STEP.unpack_from(chunk, at)
        size = length + LENGTH_OVERHEAD
        if expected_last_offset not in (None, base + delta) or size < HEADER_SIZE or delta < 0 or pos + size > last:
            return None
        expected_last_offset = None
        if pos + size > end and pos > position:
            return pos - position, base
        pos += size
        next_offset = base + delta + 1
    return pos - position, next_offset


def _measure_complete_batches(segment: LogSegment, data: Buffer, start: int, wait: bool) -> tuple[int, int]:
    """Return the size of the complete batches in `data`, read at `start`, and the offset that follows them."""
    size = len(data)
    pos, next_offset = 0, -1
    if size > _INDEXED_BYTES:
        try:
            entry = segment.indexes.entry_at_position(start + size - HEADER_SIZE, wait)
        except ValueError:
            entry = None
        if entry is not None and position_of(entry) > start:
            pos = position_of(entry) - start
            base, _, delta = STEP.unpack_from(data, pos)
            next_offset = base
            if base + delta != segment.base_offset + relative_offset_of(entry):
                pos, next_offset = 0, -1
    while size - pos >= HEADER_SIZE:
        base, length, delta = STEP.unpack_from(data, pos)
        batch_size = length + LENGTH_OVERHEAD
        if batch_size < HEADER_SIZE:
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"{segment.path()} is damaged at {start + pos}")
        if batch_size > size - pos:
            break
        pos += batch_size
        next_offset = base + delta + 1
    return pos, next_offset


def _measure_first_batch(
    segment: LogSegment, data: Buffer, position: int, available: int, wait: bool
) -> tuple[int, int]:
    """Return the size of the batch at `position`, and the offset that follows it. `data` was read there."""
    header = data if len(data) >= HEADER_SIZE else segment.read(HEADER_SIZE, position, wait)
    if len(header) >= HEADER_SIZE:
        base, length, delta = STEP.unpack_from(header, 0)
        if HEADER_SIZE <= length + LENGTH_OVERHEAD <= available:
            return length + LENGTH_OVERHEAD, base + delta + 1
    if not wait:
        raise WouldBlock
    raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"{segment.path()} is damaged at {position}")
