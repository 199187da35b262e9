"""A cache of positions in the log: those of recent appends, and those at which recent reads ended."""

from bisect import bisect_right

from kbroker.storage.log.segment import LogSegment

# The cache has at least this many of the most recent appends.
_RECENT_APPENDS = 64
_READ_ENDS = 64


class PositionCache:
    """The positions of one log. After a truncation the log uses a new cache, since positions may be wrong.

    Threads use it while the event loop appends; segment.py says why that is safe.
    """

    __slots__ = ("_read_ends", "_recent_appends")

    def __init__(self, active: LogSegment) -> None:
        # The ends of reads: (next offset, segment, position), in a table of fixed size indexed by the offset.
        self._read_ends: list[tuple[int, LogSegment, int]] = [(-1, active, 0)] * _READ_ENDS
        # The active segment, and the base offsets and positions of its last batches.
        self._recent_appends: tuple[LogSegment, list[int], list[int]] = (active, [], [])

    def start_segment(self, active: LogSegment) -> None:
        """Start with a new active segment."""
        self._recent_appends = (active, [], [])

    def add_append(self, base_offset: int, position: int) -> None:
        """Add a batch that was appended to the active segment."""
        active, offsets, positions = self._recent_appends
        # The position is added first, since a thread that finds the offset reads it.
        positions.append(position)
        offsets.append(base_offset)
        if len(offsets) >= 2 * _RECENT_APPENDS:
            self._recent_appends = (active, offsets[_RECENT_APPENDS:], positions[_RECENT_APPENDS:])

    def add_read_end(self, next_offset: int, segment: LogSegment, position: int) -> None:
        """Add the end of a read, where the reader's next read begins."""
        self._read_ends[_slot(next_offset)] = (next_offset, segment, position)

    def find(self, offset: int) -> tuple[LogSegment, int] | None:
        """Return the segment and position of the first batch that reaches `offset`; None if it is not in the cache."""
        next_offset, segment, position = self._read_ends[_slot(offset)]
        if next_offset == offset and not segment.retired and position < segment.size:
            return segment, position
        segment, offsets, positions = self._recent_appends
        if offsets and offset >= offsets[0]:
            return segment, positions[bisect_right(offsets, offset) - 1]
        return None

    def find_read_end(self, segment: LogSegment, position: int) -> int | None:
        """Return the next offset after a read that ended at this position, or None."""
        for next_offset, ended_in, ended_at in list(self._read_ends):
            if ended_in is segment and ended_at == position:
                return next_offset
        return None

    def may_be_beyond(self, active: LogSegment, offset: int) -> bool:
        """Return whether a batch at `offset` or later may have been appended since `active` was the active segment."""
        segment, offsets, _ = self._recent_appends
        return segment is not active or (bool(offsets) and offsets[-1] >= offset)


def _slot(offset: int) -> int:
    return (offset ^ offset >> 6 ^ offset >> 12) % _READ_ENDS
