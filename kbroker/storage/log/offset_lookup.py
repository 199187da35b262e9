"""Finds positions of offsets in a log, and offsets of timestamps.

The position of an offset is in the position cache, or is found by the offset index and the batches after its entry. An
index that does not match the log is rebuilt. If the log is damaged, the batches after the damage remain readable.

For a timestamp the time index leads to a batch, whose records are then read, in a thread. On a topic with delayed
delivery, `visible` returns what consumers see of a batch, or None. Hidden batches are skipped by their headers.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from typing import NamedTuple, cast

from kbroker.common import Buffer, KafkaError
from kbroker.runtime.event_log import EventLogger
from kbroker.storage.log.batch_scan import STEP, iter_valid_headers
from kbroker.storage.log.indexes import WouldBlock, position_of, relative_offset_of
from kbroker.storage.log.log_state import LogState
from kbroker.storage.log.segment import LogSegment
from kbroker.storage.log.segment_indexes import SegmentGone
from protocol.errors import ErrorCode, MalformedError
from protocol.records.batch import HEADER_SIZE, LENGTH_OVERHEAD, BatchHeader, iter_batch_records, parse_header

# The cache has at least this many of the most recent appends.
_RECENT_APPENDS = 64
_READS = 64

# The reads of a log that was not read yet: its table would take 600 bytes. No offset is -2.
_NO_READS: list[tuple[int, LogSegment, int, int, int, int]] = [(-2, cast(LogSegment, None), 0, 0, -1, -1)] * _READS

# The appends of a segment without any since its log was opened.
_NO_APPENDS: list[int] = []

# Segment, position and size in bytes.
KnownRead = tuple[LogSegment, int, int]


class PositionCache:
    """The positions of recent appends to a log, and where recent reads began and ended. After a truncation the log uses
    a new cache, since positions may be wrong.

    Threads use it while the event loop appends; segment.py says why that is safe.
    """

    __slots__ = ("_reads", "_recent_appends")

    def __init__(self, active: LogSegment) -> None:
        # The last reads, in a table of fixed size indexed by their offset: (offset, segment, position, size, next
        # offset, limit). A read with a limit of `size` to `limit` bytes has the same result; `limit` is -1 if the read
        # ended at the end of the log. The end of each read has an entry of size 0, where the reader's next read begins.
        self._reads = _NO_READS
        # The active segment, and the base offsets and positions of its last batches.
        self._recent_appends: tuple[LogSegment, list[int], list[int]] = (active, _NO_APPENDS, _NO_APPENDS)

    def start_segment(self, active: LogSegment) -> None:
        """Start with a new active segment."""
        self._recent_appends = (active, _NO_APPENDS, _NO_APPENDS)

    def add_append(self, base_offset: int, position: int) -> None:
        """Add a batch that was appended to the active segment."""
        active, offsets, positions = self._recent_appends
        if not 0 < len(offsets) < 2 * _RECENT_APPENDS:
            offsets, positions = offsets[_RECENT_APPENDS:], positions[_RECENT_APPENDS:]
            self._recent_appends = (active, offsets, positions)
        # The position is added first, since a thread that finds the offset reads it.
        positions.append(position)
        offsets.append(base_offset)

    def add_read(
        self, offset: int, segment: LogSegment, position: int, size: int, next_offset: int, limit: int
    ) -> None:
        """Add a read from `offset` on, which begins at `position` and ends after `size` bytes, before `next_offset`.

        `limit`: the maximum of bytes that the request allowed; -1 if the read ended at the end of the log.
        """
        reads = self._reads
        if reads is _NO_READS:
            reads = self._reads = _NO_READS.copy()
        reads[_slot(offset)] = (offset, segment, position, size, next_offset, limit)
        end, slot = position + size, _slot(next_offset)
        known_offset, known_segment, known_position, _, _, _ = reads[slot]
        if known_offset != next_offset or known_segment is not segment or known_position != end:
            reads[slot] = (next_offset, segment, end, 0, -1, -1)

    def find(self, offset: int) -> tuple[LogSegment, int] | None:
        """Return the segment and position of the first batch that reaches `offset`; None if it is not in the cache."""
        known_offset, segment, position, _, _, _ = self._reads[_slot(offset)]
        if known_offset == offset and not segment.retired and position < segment.size:
            return segment, position
        segment, offsets, positions = self._recent_appends
        if offsets and offset >= offsets[0]:
            return segment, positions[bisect_right(offsets, offset) - 1]
        return None

    def find_read(self, offset: int, max_bytes: int, max_offset: int) -> KnownRead | None:
        """Return the result of an earlier read that is also the result of this one; None if it is not in the cache.

        It consists of complete batches of at most `max_bytes`, or is a larger first batch.
        """
        known_offset, segment, position, size, next_offset, limit = self._reads[_slot(offset)]
        if known_offset != offset or max_bytes > limit or next_offset > max_offset or segment.retired:
            return None
        return (segment, position, size) if size <= max_bytes or size > limit else None

    def find_append_end(self, segment: LogSegment, position: int, max_bytes: int) -> tuple[int, int] | None:
        """Return the size of the complete batches in `max_bytes` at `position`, and the offset that follows them.

        If the first batch is larger, the result is for that batch. Returns None if the batches are not among the
        recent appends. Only the event loop may call it.
        """
        active, offsets, positions = self._recent_appends
        if active is not segment or not positions or position < positions[0]:
            return None
        slot = bisect_right(positions, position + max_bytes) - 1
        if positions[slot] <= position:
            slot += 1
            if slot == len(positions):
                return None
        return positions[slot] - position, offsets[slot]

    def next_offset_after(self, offset: int, size: int) -> int | None:
        """Return the offset that follows a read of `size` bytes from `offset` on; None if it is not in the cache."""
        known_offset, _, _, known_size, next_offset, _ = self._reads[_slot(offset)]
        return next_offset if known_offset == offset and known_size == size else None

    def may_be_beyond(self, active: LogSegment, offset: int) -> bool:
        """Return whether a batch at `offset` or later may have been appended since `active` was the active segment."""
        segment, offsets, _ = self._recent_appends
        return segment is not active or (bool(offsets) and offsets[-1] >= offset)


def _slot(offset: int) -> int:
    return (offset ^ offset >> 6 ^ offset >> 12) % _READS


events = EventLogger("kbroker.storage")

# Headers are read in chunks of this many bytes.
_CHUNK_BYTES = 4096
_BASE_OFFSET = attrgetter("base_offset")
MAX_OFFSET = (1 << 63) - 1


def find_batch(
    log: LogState, segments: Sequence[LogSegment], positions: PositionCache, offset: int, wait: bool
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


def search_segment(log: LogState, segment: LogSegment, offset: int, wait: bool) -> int:
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


def end_offset_of(log: LogState, segment: LogSegment) -> int:
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


# Timestamps.


class TimestampedOffset(NamedTuple):
    """The result of a lookup by timestamp."""

    offset: int
    timestamp: int
    leader_epoch: int


Visible = Callable[[memoryview, BatchHeader], Buffer | None]


def find_offset_for_timestamp(
    log: LogState, timestamp: int, max_offset: int, visible: Visible | None = None
) -> TimestampedOffset | None:
    """Return the first record below `max_offset` whose timestamp is at least `timestamp`. Raises KafkaError."""
    searched_to = log.log_start_offset

    def find() -> TimestampedOffset | None:
        nonlocal searched_to
        for segment in log.segments:
            end = segment.end_offset
            if segment.max_timestamp >= timestamp and (end is None or end > searched_to):
                found = next(_iter_from(log, segment, timestamp, visible, max_offset), None)
                if found is not None:
                    return found if found.offset < max_offset else None
            if end is not None:
                searched_to = max(searched_to, end)
        return None

    return _repeat(log, find)


def find_max_timestamp(log: LogState, visible: Visible | None = None) -> TimestampedOffset | None:
    """Return the first record with the largest timestamp (KIP-734); None if none has one. Raises KafkaError."""

    def find() -> TimestampedOffset | None:
        best: TimestampedOffset | None = None
        for segment in sorted(log.segments, key=lambda segment: segment.max_timestamp, reverse=True):
            lowest = 0 if best is None else best.timestamp + 1
            if segment.max_timestamp < lowest:
                break
            if visible is None:
                return next(_iter_from(log, segment, segment.max_timestamp), None)
            best = _find_newest_visible(log, segment, lowest, visible) or best
        return best

    return _repeat(log, find)


def _repeat(log: LogState, find: Callable[[], TimestampedOffset | None]) -> TimestampedOffset | None:
    """Search, again if a segment has been removed meanwhile."""
    while True:
        try:
            return find()
        except SegmentGone:
            continue
        except OSError as error:
            raise log.health.read_failed(error) from error


def _find_newest_visible(log: LogState, segment: LogSegment, lowest: int, visible: Visible) -> TimestampedOffset | None:
    """Return the first record with the largest timestamp of a segment, if that is at least `lowest`.

    The newest batches may be hidden, so the search goes back from the largest timestamp, further each time.
    """
    back_ms = 1000
    while True:
        timestamp = max(segment.max_timestamp - back_ms, lowest)
        is_whole = _offset_before(segment, timestamp) <= max(segment.base_offset, log.log_start_offset)
        found = _iter_from(log, segment, lowest if is_whole else timestamp, visible)
        newest = max(found, key=lambda record: (record.timestamp, -record.offset), default=None)
        if newest is not None or is_whole or timestamp == lowest:
            return newest
        back_ms *= 16


def _iter_from(
    log: LogState, segment: LogSegment, timestamp: int, visible: Visible | None = None, max_offset: int = MAX_OFFSET
) -> Iterator[TimestampedOffset]:
    """Iterate over the records of a segment that are not older than `timestamp`, up to about `max_offset`."""
    indexed = _offset_before(segment, timestamp)
    for start in (indexed, segment.base_offset):
        start = max(log.log_start_offset, start)
        for position, header in iter_batches_from(log, segment, start):
            if header.base_offset >= max_offset:
                return
            if header.max_timestamp < timestamp or header.last_offset < start:
                continue
            if start == indexed and header.base_offset <= indexed > segment.base_offset:
                # According to the index all records up to here are earlier, so it is damaged: search the whole segment.
                break
            if visible is not None and header.is_hidden:
                continue
            batch = segment.read(header.size, position, True)
            for offset, record_timestamp in _iter_timestamps(batch, header, visible):
                if record_timestamp >= timestamp and offset >= log.log_start_offset:
                    yield TimestampedOffset(offset, record_timestamp, header.leader_epoch)
        else:
            return


def _offset_before(segment: LogSegment, timestamp: int) -> int:
    """Return an offset before which all records are earlier, according to the time index."""
    try:
        return segment.base_offset + segment.indexes.offset_before_timestamp_blocking(timestamp)
    except (ValueError, FileNotFoundError):
        # The time index is damaged: search the whole segment.
        return segment.base_offset


def iter_batches_from(log: LogState, segment: LogSegment, start: int) -> Iterator[tuple[int, BatchHeader]]:
    """Iterate over (position, header) of the batches, beginning with the one that reaches `start`."""
    size = segment.size
    try:
        position = search_segment(log, segment, start, True)
    except KafkaError:
        # The batch with `start` is damaged. Continue after it.
        position = 0
    headers = iter_valid_headers(
        segment.open_blocking(), position, size, segment.base_offset, end_offset_of(log, segment)
    )
    for position, header, _ in headers:
        yield position, header


def _iter_timestamps(batch: Buffer, header: BatchHeader, visible: Visible | None) -> Iterator[tuple[int, int]]:
    """Iterate over (offset, timestamp) of the records of a complete batch. Raises KafkaError(CORRUPT_MESSAGE)."""
    try:
        if visible is not None:
            seen = visible(memoryview(batch), header)
            if seen is None:
                return
            batch, header = seen, parse_header(seen)
        append_time = header.max_timestamp if header.is_log_append_time else None
        for record in iter_batch_records(batch, header):
            timestamp = record.timestamp if append_time is None else append_time
            yield header.base_offset + record.offset_delta, timestamp
    except MalformedError as error:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, str(error)) from error
