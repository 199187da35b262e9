"""The transactions of one partition by their offsets: which are open, and which have ended above the high watermark.

Consumers that read committed records read up to the first of both, so that they never see a record of which it is not
known yet, and to every replica, whether it counts.
"""

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

# The first unstable offset where every transaction is decided.
NO_UNSTABLE_OFFSET = 1 << 62


class CompletedTransaction(NamedTuple):
    """Of one producer: from its first record up to its marker. `last_stable_offset`: where the first of the others
    that are still open begins, or the offset after the marker."""

    producer_id: int
    first_offset: int
    last_offset: int
    committed: bool
    last_stable_offset: int


class OngoingTransactions:
    """`first_unstable`: of the first record that may not be told yet to who reads committed ones, NEVER if none."""

    __slots__ = ("_ended", "_open", "first_unstable_offset")

    def __init__(self) -> None:
        self.first_unstable_offset = NO_UNSTABLE_OFFSET
        # Producer ids by the first offsets of their transactions, which ascend: a new one begins at the log's end.
        self._open: dict[int, int] = {}
        # (offset of the marker, first offset), in order of the markers.
        self._ended: deque[tuple[int, int]] = deque()

    def __len__(self) -> int:
        """How many are open."""
        return len(self._open)

    def begin(self, producer_id: int, first_offset: int) -> None:
        self._open[first_offset] = producer_id
        if first_offset < self.first_unstable_offset:
            self.first_unstable_offset = first_offset

    def end(self, producer_id: int, first_offset: int, marker_offset: int, committed: bool) -> CompletedTransaction:
        """Its marker has been appended; it stays unstable until the high watermark has passed that."""
        self._open.pop(first_offset, None)
        self._ended.append((marker_offset, first_offset))
        stable = next(iter(self._open), marker_offset + 1)
        return CompletedTransaction(producer_id, first_offset, marker_offset, committed, stable)

    def on_high_watermark_updated(self, offset: int) -> None:
        """Everything below `offset` is committed, the markers there as well."""
        ended = self._ended
        if ended and ended[0][0] < offset:
            while ended and ended[0][0] < offset:
                ended.popleft()
            first = min([first for _, first in ended], default=NO_UNSTABLE_OFFSET)
            self.first_unstable_offset = min(next(iter(self._open), NO_UNSTABLE_OFFSET), first)

    def restore(self, opened: Iterable[tuple[int, int]]) -> None:
        """Those that a snapshot has, as (first offset, producer id)."""
        for first_offset, producer_id in sorted(opened):
            self.begin(producer_id, first_offset)
