"""Finds the position of an offset: in the position cache, or by the offset index and the batches after its entry.

An index that does not match the log is rebuilt. If the log is damaged, the batches after the damage remain readable.
"""

from bisect import bisect_right
from collections.abc import Sequence
from operator import attrgetter

from kbroker.common import KafkaError
from kbroker.runtime.event_log import EventLogger
from kbroker.storage.indexes.index_file import WouldBlock
from kbroker.storage.indexes.offset_index import position_of, relative_offset_of
from kbroker.storage.log.batch_scan import STEP, iter_valid_headers
from kbroker.storage.log.reading.position_cache import PositionCache
from kbroker.storage.log.reading.readable_log import IndexedLog
from kbroker.storage.log.segment import LogSegment
from protocol.errors import ErrorCode
from protocol.records.batch import HEADER_SIZE, LENGTH_OVERHEAD

events = EventLogger("kbroker.storage")

# Headers are read in chunks of this many bytes.
_CHUNK_BYTES = 4096
_BASE_OFFSET = attrgetter("base_offset")


def find_batch(
    log: IndexedLog, segments: Sequence[LogSegment], positions: PositionCache, offset: int, wait: bool
) -> tuple[LogSegment, int]:
    """Return the segment and position of the first batch whose last offset is at least `offset`.

    Without `wait` raises WouldBlock. Raises SegmentGone, KafkaError(CORRUPT_MESSAGE).
    """
    known = positions.find(offset)
    if known is not None:
        return known
    slot = max(bisect_right(segments, offset, key=_BASE_OFFSET) - 1, 0)
    while True:
        segment = segments[slot]
        position = search_segment(log, segment, offset, wait)
        slot += 1
        # The batch is in a later segment: compaction may have removed the last offsets of this one.
        if position < segment.size or slot == len(segments):
            return segment, position


def search_segment(log: IndexedLog, segment: LogSegment, offset: int, wait: bool) -> int:
    """Return the position of the first batch that reaches `offset`; the segment's size if there is none.

    Raises the errors of `find_batch`: CORRUPT_MESSAGE if damage to the log makes the position unknowable.
    """
    if offset <= segment.base_offset:
        return 0
    end_offset = end_offset_of(log, segment)
    found = _look_up(segment, offset, end_offset, wait)
    if found is not None:
        return found
    if not wait:
        raise WouldBlock
    if not segment.indexes.rebuilt:
        rebuild_indexes(segment, log.config.index_interval_bytes, end_offset)
        found = _look_up(segment, offset, end_offset, wait)
        what = "log damaged" if found is None else "index did not match the log, rebuilt"
        events.warning(what, partition=log.tp, file=segment.path(), offset=offset)
    if found is None:
        found = _find_past_damage(segment, offset, end_offset)
    if found is None:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"{segment.path()} is damaged where offset {offset} should be")
    return found


def end_offset_of(log: IndexedLog, segment: LogSegment) -> int:
    """Return the offset after the last one that can be in the segment."""
    return segment.end_offset if segment.end_offset is not None else log.log_end_offset


def _look_up(segment: LogSegment, offset: int, end_offset: int, wait: bool) -> int | None:
    """Like `search_segment`, but returns None if the index does not match the log."""
    try:
        entry = segment.indexes.entry_at_offset(offset - segment.base_offset, wait)
    except ValueError:
        return None
    if entry is None:
        return _walk(segment, 0, offset, None, end_offset, wait)
    last_offset = segment.base_offset + relative_offset_of(entry)
    return _walk(segment, position_of(entry), offset, last_offset, end_offset, wait)


def _walk(
    segment: LogSegment, position: int, offset: int, first_last_offset: int | None, end_offset: int, wait: bool
) -> int | None:
    """Follow the headers to the batch that reaches `offset`. Returns its position; the segment's size if none does.

    According to the index the first batch ends at `first_last_offset`, and all offsets are below `end_offset`. Returns
    None if the headers contradict that: nothing may be served from a position at which no batch begins.
    """
    size = segment.size
    chunk_start = position
    chunk = segment.read(min(_CHUNK_BYTES, size - position), position, wait) if position < size else b""
    while size - position >= HEADER_SIZE:
        pos = position - chunk_start
        if pos + HEADER_SIZE > len(chunk):
            chunk = segment.read(min(_CHUNK_BYTES, size - position), position, wait)
            chunk_start, pos = position, 0
            if len(chunk) < HEADER_SIZE:
                return None
        base, length, delta = STEP.unpack_from(chunk, pos)
        if first_last_offset is not None and base + delta != first_last_offset:
            return None
        first_last_offset = None
        if length < HEADER_SIZE - LENGTH_OVERHEAD or delta < 0 or base < segment.base_offset:
            return None
        if base + delta >= offset:
            return position if base + delta < end_offset else None
        position += length + LENGTH_OVERHEAD
    return size if position == size else None


def _find_past_damage(segment: LogSegment, offset: int, end_offset: int) -> int | None:
    """Return the position of the batch with `offset`, after damaged batches; None if it is damaged itself."""
    try:
        entry = segment.indexes.entry_at_offset(offset - segment.base_offset, True)
    except ValueError:
        entry = None
    start = position_of(entry) if entry is not None else 0
    headers = iter_valid_headers(segment.open_blocking(), start, segment.size, segment.base_offset, end_offset)
    for position, header, _ in headers:
        if header.base_offset <= offset <= header.last_offset:
            return position
    return None


def rebuild_indexes(segment: LogSegment, index_interval: int, end_offset: int) -> None:
    """Rebuild the offset and the time index from the log, in memory and in a thread. The next checkpoint writes them.

    The first batch after damage to the log gets an entry, so that it can be found.
    """
    rebuilt = LogSegment(segment.disk, segment.directory, segment.base_offset, segment.created_ms)
    last_offset = segment.base_offset - 1
    headers = iter_valid_headers(segment.open_blocking(), 0, segment.size, segment.base_offset, end_offset)
    for position, header, follows_damage in headers:
        if follows_damage:
            rebuilt.index_next_batch()
        if header.last_offset > last_offset:
            last_offset = header.last_offset
            rebuilt.add_batch(position, header.size, last_offset, header.max_timestamp, index_interval)
    rebuilt.add_time_entry()
    offsets, times = rebuilt.indexes.offset, rebuilt.indexes.time
    assert offsets is not None
    assert times is not None
    segment.indexes.use_rebuilt(offsets, times)
