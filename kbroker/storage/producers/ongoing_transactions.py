"""The open transactions of a partition, and those that have ended above the high watermark.

The last stable offset is before both: a consumer of committed records must not read a record before the outcome of its
transaction is known and every in-sync replica has the marker.
"""

from bisect import bisect_left
from collections.abc import Iterable
from typing import NamedTuple

# The first unstable offset when all transactions have ended.
NO_UNSTABLE_OFFSET = 1 << 62


class CompletedTransaction(NamedTuple):
    """A producer's transaction, from its first record to its marker at `last_offset`.

    `last_stable_offset`: the first offset of the transactions that are still open, or the offset after the marker.
    """

    producer_id: int
    first_offset: int
    last_offset: int
    committed: bool
    last_stable_offset: int


class OngoingTransactions:
    """`first_unstable_offset`: the first offset that consumers of committed records may not read yet."""

    __slots__ = ("_completed", "_open", "first_unstable_offset")

    def __init__(self) -> None:
        self.first_unstable_offset = NO_UNSTABLE_OFFSET
        # Producer ids by the first offsets of their transactions. These ascend, since a transaction begins at the log
        # end.
        self._open: dict[int, int] = {}
        # (offset of the marker, first offset), in the order of the markers. A list: an empty deque takes 760 bytes.
        self._completed: list[tuple[int, int]] = []

    def __len__(self) -> int:
        """The number of open transactions."""
        return len(self._open)

    def begin(self, producer_id: int, first_offset: int) -> None:
        self._open[first_offset] = producer_id
        if first_offset < self.first_unstable_offset:
            self.first_unstable_offset = first_offset

    def end(self, producer_id: int, first_offset: int, marker_offset: int, committed: bool) -> CompletedTransaction:
        """End a transaction, whose marker was appended. It is unstable until the high watermark is above the marker."""
        self._open.pop(first_offset, None)
        self._completed.append((marker_offset, first_offset))
        last_stable_offset = next(iter(self._open), marker_offset + 1)
        return CompletedTransaction(producer_id, first_offset, marker_offset, committed, last_stable_offset)

    def on_high_watermark_updated(self, high_watermark: int) -> None:
        """Mark transactions with a marker below the high watermark as stable."""
        completed = self._completed
        if completed and completed[0][0] < high_watermark:
            del completed[: bisect_left(completed, (high_watermark,))]
            first_completed = min([first for _, first in completed], default=NO_UNSTABLE_OFFSET)
            self.first_unstable_offset = min(next(iter(self._open), NO_UNSTABLE_OFFSET), first_completed)

    def restore(self, open_transactions: Iterable[tuple[int, int]]) -> None:
        """Begin the open transactions of a snapshot: (first offset, producer id)."""
        for first_offset, producer_id in sorted(open_transactions):
            self.begin(producer_id, first_offset)

    def hold(self, first_offset: int, last_offset: int) -> None:
        """Regard everything from `first_offset` on as unstable until the high watermark is above `last_offset`."""
        self._completed.append((last_offset, first_offset))
        self.first_unstable_offset = min(self.first_unstable_offset, first_offset)

    def restore_completed(self, before: "OngoingTransactions", below: int) -> None:
        """Add the transactions of `before` that have ended with a marker below `below`, and are not stable yet."""
        completed = [each for each in before._completed if each[0] < below]
        self._completed[:0] = completed
        self.first_unstable_offset = min([self.first_unstable_offset, *[first for _, first in completed]])
