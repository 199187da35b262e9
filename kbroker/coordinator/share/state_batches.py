"""Merges the ranges of a share partition with those that a write changes (Kafka: PersisterStateBatchCombiner; pure).

Of two states of an offset the one with the higher delivery count applies, then the one with the higher delivery state.
So a write that arrives twice, or after a later one, takes nothing back: an acknowledged record stays acknowledged.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from operator import attrgetter

from kbroker.coordinator.share.share_partition_state import StateBatch
from kbroker.runtime.turns import paced

_FIRST, _LAST = attrgetter("first"), attrgetter("last")


def combine_batches(
    current: Sequence[StateBatch], changes: Iterable[StateBatch], start_offset: int
) -> tuple[StateBatch, ...]:
    """Return the ranges from `start_offset` on, sorted and disjoint; adjacent ones of the same state are one range.

    `current` are sorted and disjoint ranges, `changes` may overlap.
    """
    batches = list(current)
    for change in paced(sorted(changes)):
        # Including those that are adjacent to it.
        low = bisect_left(batches, change.first - 1, key=_LAST)
        high = bisect_right(batches, change.last + 1, key=_FIRST)
        batches[low:high] = _joined(_overlaid(batches[low:high], change))
    low = bisect_left(batches, start_offset, key=_LAST)
    del batches[:low]
    if batches and batches[0].first < start_offset:
        batches[0] = batches[0]._replace(first=start_offset)
    return tuple(batches)


def _overlaid(batches: Sequence[StateBatch], change: StateBatch) -> list[StateBatch]:
    """Return the ranges of both, in order and disjoint."""
    pieces = []
    # The first offset of the change that is not in `pieces`.
    position = change.first
    for batch in batches:
        if batch.first < change.first:
            pieces.append(batch._replace(last=min(batch.last, change.first - 1)))
        if position < batch.first and position <= change.last:
            pieces.append(change._replace(first=position, last=min(batch.first - 1, change.last)))
        first, last = max(batch.first, change.first), min(batch.last, change.last)
        if first <= last:
            winner = batch if _priority(batch) > _priority(change) else change
            pieces.append(winner._replace(first=first, last=last))
        if batch.last > change.last:
            pieces.append(batch._replace(first=max(batch.first, change.last + 1)))
        position = max(position, batch.last + 1)
    if position <= change.last:
        pieces.append(change._replace(first=position))
    return pieces


def _priority(batch: StateBatch) -> tuple[int, int]:
    return batch.delivery_count, batch.state


def _joined(pieces: Iterable[StateBatch]) -> list[StateBatch]:
    joined: list[StateBatch] = []
    for piece in pieces:
        if joined and joined[-1].last + 1 == piece.first and joined[-1][2:] == piece[2:]:
            joined[-1] = joined[-1]._replace(last=piece.last)
        else:
            joined.append(piece)
    return joined
