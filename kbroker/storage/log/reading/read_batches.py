"""Reads complete batches from a log, by offset.

The cost of a read depends neither on the length of the log nor on the number of batches that it returns.
offset_lookup.py finds its start. Its end is known, or is found by the offset index too. So at either end only the
headers of about one index interval are read.
"""

from typing import cast

from kbroker.common import Buffer, KafkaError
from kbroker.storage.indexes.index_file import WouldBlock
from kbroker.storage.indexes.offset_index import position_of, relative_offset_of
from kbroker.storage.log.batch_scan import STEP
from kbroker.storage.log.reading.file_slice import BULK_BYTES, FileSlice
from kbroker.storage.log.reading.offset_lookup import find_batch
from kbroker.storage.log.reading.readable_log import ReadableLog
from kbroker.storage.log.segment import LogSegment
from kbroker.storage.log.segment_indexes import SegmentGone
from protocol.errors import ErrorCode
from protocol.records.batch import HEADER_SIZE, LENGTH_OVERHEAD

# At most this many headers are read to find the end of a FileSlice.
_MAX_HEADERS = 64
# In more data than this the offset index is used to find the last batches; in less, every header is read.
_INDEXED_BYTES = 8192
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
    active = segments[-1]
    active_size = active.size
    log_end_offset = log.log_end_offset
    if not log.log_start_offset <= offset <= log_end_offset:
        raise KafkaError(
            ErrorCode.OFFSET_OUT_OF_RANGE, f"{offset} is not in {log.log_start_offset} to {log_end_offset}"
        )
    if offset >= max_offset or offset == log_end_offset:
        return b""
    segment, position = find_batch(log, segments, positions, offset, wait)
    end, next_offset = segment.size, segment.end_offset
    if segment is active:
        # In a thread, the event loop may append between reading the size and the log end offset.
        end, next_offset = active_size, None if wait else log_end_offset
    if max_offset < log_end_offset or (wait and segment is active and positions.may_be_beyond(active, max_offset)):
        last, last_position = find_batch(log, segments, positions, max_offset, wait)
        if last is segment:
            end, next_offset = last_position, max_offset
    available = end - position
    if available <= 0:
        return b""
    size = min(available, max_bytes)
    if allow_slice and size >= BULK_BYTES:
        complete, following = (size, next_offset) if size == available else _find_slice_end(segment, position, size)
        if complete and following is not None:
            positions.add_read_end(following, segment, position + complete)
            return segment.slice(position, complete, log.read_failed)
    data = segment.read(size, position, wait) if size > 0 else b""
    if len(data) == available:
        if next_offset is not None:
            positions.add_read_end(next_offset, segment, end)
        return data
    complete, following = _measure_complete_batches(segment, data, position, wait)
    if not complete:
        if len(data) < size and not wait:
            raise WouldBlock
        if not min_one:
            return b""
        data, following = _read_first_batch(segment, position, available, wait)
        complete = len(data)
    positions.add_read_end(following, segment, position + complete)
    return memoryview(data)[:complete]


def read_batches_blocking(log: ReadableLog, offset: int, max_bytes: int, max_offset: int, min_one: bool) -> Buffer:
    """`read_batches` in a thread, repeated if retention or compaction removed the segment meanwhile."""
    for _ in range(_MAX_ATTEMPTS):
        try:
            return cast("Buffer", read_batches(log, offset, max_bytes, max_offset, min_one, True))
        except SegmentGone:
            continue
    raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "segments keep disappearing")


def bytes_between(log: ReadableLog, start: int, end: int) -> int:
    """Return the bytes from the batch with offset `start` to that with `end`; 0 if that would require a disk read."""
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


def _find_slice_end(segment: LogSegment, position: int, size: int) -> tuple[int, int | None]:
    """Return the size of the complete batches in `size` bytes at `position`, and the offset that follows them.

    Only headers near the end are read. Returns 0 bytes if these are not enough. Raises WouldBlock.
    """
    end = position + size
    try:
        entry = segment.indexes.entry_at_position(end - HEADER_SIZE, False)
    except ValueError:
        return 0, None
    if entry is None or position_of(entry) <= position:
        return 0, None
    pos, next_offset = position_of(entry), None
    first_last_offset: int | None = segment.base_offset + relative_offset_of(entry)
    for _ in range(_MAX_HEADERS):
        if end - pos < HEADER_SIZE:
            return pos - position, next_offset
        header = segment.read(HEADER_SIZE, pos, False)
        if len(header) < HEADER_SIZE:
            break
        base, length, delta = STEP.unpack_from(header, 0)
        if first_last_offset not in (None, base + delta) or length < HEADER_SIZE - LENGTH_OVERHEAD or delta < 0:
            break
        first_last_offset = None
        if length + LENGTH_OVERHEAD > end - pos:
            return pos - position, base
        pos += length + LENGTH_OVERHEAD
        next_offset = base + delta + 1
    return 0, None


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


def _read_first_batch(segment: LogSegment, position: int, available: int, wait: bool) -> tuple[Buffer, int]:
    """Return the complete batch at `position`, of any size, and the offset that follows it."""
    header = segment.read(HEADER_SIZE, position, wait)
    if len(header) == HEADER_SIZE:
        base, length, delta = STEP.unpack_from(header, 0)
        size = length + LENGTH_OVERHEAD
        if HEADER_SIZE <= size <= available:
            data = segment.read(size, position, wait)
            if len(data) == size:
                return data, base + delta + 1
    if not wait:
        raise WouldBlock
    raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"{segment.path()} is damaged at {position}")
