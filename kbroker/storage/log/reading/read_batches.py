"""Reads complete batches from a log, by offset.

The cost of a read depends neither on the length of the log nor on the number of batches that it returns. The position
cache has the start and the end of recent appends and reads; otherwise offset_lookup.py and read_end.py find them.
"""

from collections.abc import Sequence
from typing import cast

from kbroker.common import Buffer, KafkaError
from kbroker.storage.indexes.index_file import WouldBlock
from kbroker.storage.log.reading.file_slice import BULK_BYTES, FileSlice
from kbroker.storage.log.reading.offset_lookup import find_batch
from kbroker.storage.log.reading.position_cache import PositionCache
from kbroker.storage.log.reading.read_end import find_read_end, measure_complete_batches, measure_first_batch
from kbroker.storage.log.reading.readable_log import ReadableLog
from kbroker.storage.log.segment import LogSegment
from kbroker.storage.log.segment_indexes import SegmentGone
from protocol.errors import ErrorCode

# The read ended at the end of the log, not at the limit of the request: the same read may return more later.
_NOT_LIMITED = -1
_MAX_ATTEMPTS = 100


def read_batches(
    log: ReadableLog,
    offset: int,
    max_bytes: int,
    max_offset: int,
    min_one: bool,
    wait: bool,
    allow_slice: bool = False,
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
        end = _find_end(positions, segment, position, max_bytes, available, end_offset, wait, allow_slice)
        if end is not None:
            size, next_offset, limit = end
            positions.add_read(offset, segment, position, size, next_offset, limit)
        elif available <= max_bytes:
            size = available
    if size > max_bytes and not min_one:
        return b""
    if allow_slice and size >= BULK_BYTES:
        return segment.slice(position, size, log.read_failed)
    # The size is 0 if it is unknown: the end of the last complete batch is then found in what was read.
    wanted = size or min(available, max_bytes)
    data = segment.read(wanted, position, wait) if wanted > 0 else b""
    if size and len(data) == size:
        return data
    complete, next_offset = measure_complete_batches(segment, data, position, wait)
    if complete:
        limit = max_bytes if len(data) == wanted else _NOT_LIMITED
        positions.add_read(offset, segment, position, complete, next_offset, limit)
        return memoryview(data)[:complete]
    if len(data) < wanted and not wait:
        raise WouldBlock
    if not min_one:
        return b""
    size, next_offset = measure_first_batch(segment, data, position, available, wait)
    positions.add_read(offset, segment, position, size, next_offset, max_bytes)
    return _read_first_batch(log, segment, position, size, wait, allow_slice)


def _find_end(
    positions: PositionCache,
    segment: LogSegment,
    position: int,
    max_bytes: int,
    available: int,
    end_offset: int | None,
    wait: bool,
    allow_slice: bool,
) -> tuple[int, int, int] | None:
    """Return the size of a read, the offset that follows it, and its limit for the position cache; None if unknown."""
    if available <= max_bytes:
        return None if end_offset is None else (available, end_offset, _NOT_LIMITED)
    if wait:
        return None
    end = positions.find_append_end(segment, position, max_bytes)
    if end is None and allow_slice and max_bytes >= BULK_BYTES:
        end = find_read_end(segment, position, max_bytes, available)
    return None if end is None else (*end, max_bytes)


def _find_limit(
    log: ReadableLog,
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
    log: ReadableLog, segment: LogSegment, position: int, size: int, wait: bool, allow_slice: bool
) -> Buffer | FileSlice:
    """Read a first batch that is larger than the limit of the request."""
    if allow_slice and size >= BULK_BYTES:
        return segment.slice(position, size, log.read_failed)
    data = segment.read(size, position, wait)
    if len(data) == size:
        return data
    if not wait:
        raise WouldBlock
    raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"{segment.path()} is damaged at {position}")


def read_batches_blocking(log: ReadableLog, offset: int, max_bytes: int, max_offset: int, min_one: bool) -> Buffer:
    """Like `read_batches`, but in a thread, and repeated if retention or compaction removed the segment meanwhile."""
    for _ in range(_MAX_ATTEMPTS):
        try:
            return cast("Buffer", read_batches(log, offset, max_bytes, max_offset, min_one, True))
        except SegmentGone:
            continue
    raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "segments keep disappearing")


def bytes_between(log: ReadableLog, start: int, end: int) -> int:
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
