"""Reading a log: where an offset is, and a slice of whole batches from there.

The cost of a read does not grow with the log nor with the number of batches that it returns: its start is known
from where the last reads ended or from the last appends, else it is looked up in the index; its end is known or is
looked up in the index too, so that at most about one index interval of headers is walked at either end.
"""

from bisect import bisect_right
from operator import attrgetter
from typing import TYPE_CHECKING, cast

from kbroker.common import Buffer, KafkaError
from kbroker.runtime.event_log import EventLogger
from kbroker.storage.indexes.segment_indexes import WouldBlock
from kbroker.storage.log.batch_scan import STEP, iter_valid_headers
from kbroker.storage.log.file_slice import FileSlice
from kbroker.storage.log.segment import LogSegment, SegmentGone
from protocol.errors import ErrorCode
from protocol.records.batch import HEADER_SIZE, LENGTH_OVERHEAD

if TYPE_CHECKING:
    from kbroker.storage.log.log import Log

events = EventLogger("kbroker.storage")

# Where a read ended: (next offset, segment, position). A table of fixed size, addressed by the offset.
Hint = tuple[int, LogSegment, int]
HINT_SLOTS = 64

# From so many bytes on a read may be left to when they are sent.
BULK_BYTES = 1 << 17
# So many headers are looked at to find where a read ends.
_MAX_STEPS = 64
_LOW = 0xFFFFFFFF
_WALK_BYTES = 4096
_BASE = attrgetter("base_offset")


def hint_slot(offset: int) -> int:
    return (offset ^ offset >> 6 ^ offset >> 12) & 63


def read_slice(
    log: "Log", offset: int, max_bytes: int, max_offset: int, min_one: bool, wait: bool, later: bool = False
) -> Buffer | FileSlice:
    """Whole batches from the one that holds `offset`, all below `max_offset`, of at most `max_bytes`.

    With `min_one` the first batch is given whole even if it is larger. What is read ends with its segment. Without
    `wait` raises WouldBlock, with it SegmentGone; raises KafkaError(OFFSET_OUT_OF_RANGE). `later`: of much that is
    to be read only the place may be given.
    """
    # The size first: what matters for a thread is in segment.py.
    segments, hints = log.segments, log.hints
    active_size = segments[-1].size
    log_end_offset = log.log_end_offset
    if not log.log_start_offset <= offset <= log_end_offset:
        raise KafkaError(
            ErrorCode.OFFSET_OUT_OF_RANGE, f"{offset} is not in {log.log_start_offset} to {log_end_offset}"
        )
    if offset >= max_offset or offset == log_end_offset:
        return b""
    segment, position = find(log, segments, hints, offset, wait)
    end, next_offset = segment.size, segment.end_offset
    if segment is segments[-1]:
        # For a thread size and offset may not be of the same moment.
        end, next_offset = active_size, None if wait else log_end_offset
    if max_offset < log_end_offset or (wait and segment is segments[-1] and _has_grown(log, segment, max_offset)):
        last, cut = find(log, segments, hints, max_offset, wait)
        if last is segment:
            end, next_offset = cut, max_offset
    room = end - position
    if room <= 0:
        return b""
    wanted = min(room, max_bytes)
    if later and wanted >= BULK_BYTES:
        size, following = (room, next_offset) if wanted == room else _extent(segment, position, wanted)
        if size and following is not None:
            hints[hint_slot(following)] = (following, segment, position + size)
            return segment.place(position, size, log.read_failed)
    data = segment.read(wanted, position, wait) if wanted > 0 else b""
    if len(data) == room:
        if next_offset is not None:
            hints[hint_slot(next_offset)] = (next_offset, segment, end)
        return data
    size, following = _whole(segment, data, position, wait)
    if not size:
        if len(data) < wanted and not wait:
            raise WouldBlock
        if not min_one:
            return b""
        data, following = _first(segment, position, room, wait)
        size = len(data)
    hints[hint_slot(following)] = (following, segment, position + size)
    return memoryview(data)[:size]


def _extent(segment: LogSegment, position: int, wanted: int) -> tuple[int, int | None]:
    """Bytes of the whole batches among the `wanted` ones from `position`, and the offset that follows them.

    Only headers near the end are read. 0 bytes: it cannot be told from them.
    """
    end = position + wanted
    try:
        entry = segment.entry_at_position(end - HEADER_SIZE, False)
    except ValueError:
        return 0, None
    if entry is None or (entry & _LOW) <= position:
        return 0, None
    pos, next_offset = entry & _LOW, None
    expected: int | None = segment.base_offset + (entry >> 32)
    for _ in range(_MAX_STEPS):
        if end - pos < HEADER_SIZE:
            return pos - position, next_offset
        header = segment.read(HEADER_SIZE, pos, False)
        if len(header) < HEADER_SIZE:
            break
        base, length, delta = STEP.unpack_from(header, 0)
        if expected not in (None, base + delta) or length < HEADER_SIZE - LENGTH_OVERHEAD or delta < 0:
            break
        expected = None
        if length + LENGTH_OVERHEAD > end - pos:
            return pos - position, base
        pos += length + LENGTH_OVERHEAD
        next_offset = base + delta + 1
    return 0, None


def _has_grown(log: "Log", segment: LogSegment, max_offset: int) -> bool:
    """Whether the active segment's size, taken before, may cover a batch that is not below `max_offset`."""
    current, offsets, _ = log.tail
    return current is not segment or (bool(offsets) and offsets[-1] >= max_offset)


def find(log: "Log", segments: list[LogSegment], hints: list[Hint], offset: int, wait: bool) -> tuple[LogSegment, int]:
    """Segment and position of the first batch whose last offset is at least `offset`."""
    known, segment, position = hints[hint_slot(offset)]
    if known == offset and not segment.retired and position < segment.size:
        return segment, position
    segment, offsets, positions = log.tail
    if offsets and offset >= offsets[0]:
        return segment, positions[bisect_right(offsets, offset) - 1]
    slot = max(bisect_right(segments, offset, key=_BASE) - 1, 0)
    while True:
        segment = segments[slot]
        position = search(log, segment, offset, wait)
        slot += 1
        # Compaction may have left nothing of the offsets up to the segment's end.
        if position < segment.size or slot == len(segments):
            return segment, position


def search(log: "Log", segment: LogSegment, offset: int, wait: bool) -> int:
    """Position of the first batch that reaches `offset`; the segment's size if none does.

    Raises KafkaError(CORRUPT_MESSAGE) if damage to the log makes that impossible to know.
    """
    if offset <= segment.base_offset:
        return 0
    end_offset = end_of(log, segment)
    found = _look_up(segment, offset, end_offset, wait)
    if found is not None:
        return found
    if not wait:
        raise WouldBlock
    if not segment.rebuilt:
        rebuild_indexes(segment, log.config.index_interval_bytes, end_offset)
        found = _look_up(segment, offset, end_offset, wait)
        what = "log damaged" if found is None else "index did not fit the log, rebuilt"
        events.warning(what, partition=log.tp, file=segment.path(), offset=offset)
    if found is None:
        found = _past_damage(segment, offset, end_offset)
    if found is None:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"{segment.path()} is damaged where offset {offset} should be")
    return found


def end_of(log: "Log", segment: LogSegment) -> int:
    """The offset after the last one that can be in the segment."""
    return segment.end_offset if segment.end_offset is not None else log.log_end_offset


def _past_damage(segment: LogSegment, offset: int, end_offset: int) -> int | None:
    """Position of the batch that holds `offset`, when batches before it are damaged. None: it is damaged itself."""
    try:
        entry = segment.entry_at_offset(offset - segment.base_offset, True)
    except ValueError:
        entry = None
    start = entry & _LOW if entry is not None else 0
    for position, header, _ in iter_valid_headers(
        segment.open_blocking(), start, segment.size, segment.base_offset, end_offset
    ):
        if header.base_offset <= offset <= header.last_offset:
            return position
    return None


def _look_up(segment: LogSegment, offset: int, end_offset: int, wait: bool) -> int | None:
    """As `search`; None: log and index do not fit."""
    try:
        entry = segment.entry_at_offset(offset - segment.base_offset, wait)
    except ValueError:
        return None
    if entry is None:
        return _walk(segment, 0, offset, None, end_offset, wait)
    return _walk(segment, entry & _LOW, offset, segment.base_offset + (entry >> 32), end_offset, wait)


def _walk(
    segment: LogSegment, position: int, offset: int, expected: int | None, end_offset: int, wait: bool
) -> int | None:
    """Step from batch to batch until one reaches `offset`; the segment's size if none does.

    `expected` is the last offset of the first batch, as the index has it; all are below `end_offset`. None: the headers
    do not fit, so that nothing is served from a place where no batch is.
    """
    size = segment.size
    data = segment.read(min(_WALK_BYTES, size - position), position, wait) if position < size else b""
    start = position
    while size - position >= HEADER_SIZE:
        pos = position - start
        if pos + HEADER_SIZE > len(data):
            data = segment.read(min(_WALK_BYTES, size - position), position, wait)
            start, pos = position, 0
            if len(data) < HEADER_SIZE:
                return None
        base, length, delta = STEP.unpack_from(data, pos)
        if expected is not None and base + delta != expected:
            return None
        expected = None
        if length < HEADER_SIZE - LENGTH_OVERHEAD or delta < 0 or base < segment.base_offset:
            return None
        if base + delta >= offset:
            return position if base + delta < end_offset else None
        position += length + LENGTH_OVERHEAD
    return size if position == size else None


def _whole(segment: LogSegment, data: Buffer, start: int, wait: bool) -> tuple[int, int]:
    """Bytes of the whole batches in `data`, read at position `start`, and the offset that follows them."""
    size = len(data)
    pos, next_offset = 0, -1
    if size > 2 * _WALK_BYTES:
        try:
            entry = segment.entry_at_position(start + size - HEADER_SIZE, wait)
        except ValueError:
            entry = None
        if entry is not None and (entry & _LOW) > start:
            pos = (entry & _LOW) - start
            base, _, delta = STEP.unpack_from(data, pos)
            next_offset = base
            if base + delta != segment.base_offset + (entry >> 32):
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


def _first(segment: LogSegment, position: int, room: int, wait: bool) -> tuple[Buffer, int]:
    """The whole batch at `position`, however large, and the offset that follows it."""
    header = segment.read(HEADER_SIZE, position, wait)
    if len(header) == HEADER_SIZE:
        base, length, delta = STEP.unpack_from(header, 0)
        size = length + LENGTH_OVERHEAD
        if HEADER_SIZE <= size <= room:
            data = segment.read(size, position, wait)
            if len(data) == size:
                return data, base + delta + 1
    if not wait:
        raise WouldBlock
    raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"{segment.path()} is damaged at {position}")


def rebuild_indexes(segment: LogSegment, interval: int, end_offset: int) -> None:
    """Make both indexes anew from the log, in memory; they are written with the next checkpoint. In a thread.

    What follows damage to the log can be found again: there is an entry for it.
    """
    fresh = LogSegment(segment.disk, segment.directory, segment.base_offset, segment.created_ms)
    reached = segment.base_offset - 1
    headers = iter_valid_headers(segment.open_blocking(), 0, segment.size, segment.base_offset, end_offset)
    for position, header, damaged in headers:
        if damaged:
            fresh.unindexed = interval + 1
        if header.last_offset > reached:
            reached = header.last_offset
            fresh.note_batch(position, header, interval)
    fresh.note_time()
    segment.times = fresh.times
    segment.index = fresh.index
    segment.rebuilt = True


def retry_gone(log: "Log", offset: int, max_bytes: int, max_offset: int, min_one: bool) -> Buffer:
    """`read_slice` in a thread, again if retention or compaction took the segment away meanwhile."""
    for _ in range(100):
        try:
            return cast("Buffer", read_slice(log, offset, max_bytes, max_offset, min_one, True))
        except SegmentGone:
            continue
    raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "segments keep disappearing")


def distance(log: "Log", start: int, end: int) -> int:
    """Bytes from the batch with offset `start` to that with `end`, without waiting for the disk; 0 if that needs it."""
    segments, hints = log.segments, log.hints
    try:
        first, position = find(log, segments, hints, start, False)
        last, limit = (log.active, log.active.size)
        if end < log.log_end_offset:
            last, limit = find(log, segments, hints, end, False)
    except (WouldBlock, KafkaError, OSError):
        return 0
    between = sum([one.size for one in segments if first.base_offset <= one.base_offset < last.base_offset])
    return max(between - position + limit, 0)
