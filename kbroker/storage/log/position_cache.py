"""A cache of positions in the log: those of recent appends, and where recent reads began and ended."""

from bisect import bisect_right
from typing import cast

from kbroker.storage.log.segment import LogSegment

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
    """The positions of one log. After a truncation the log uses a new cache, since positions may be wrong.

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
