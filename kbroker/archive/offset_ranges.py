"""Ranges of offsets (pure)."""

from collections.abc import Iterable
from typing import NamedTuple


class OffsetRange(NamedTuple):
    """The offsets [start, end)."""

    start: int
    end: int


def merge_ranges(ranges: Iterable[OffsetRange]) -> tuple[OffsetRange, ...]:
    """Return the union as ascending ranges that neither touch nor overlap."""
    result: list[OffsetRange] = []
    for current in sorted(item for item in ranges if item.start < item.end):
        if result and current.start <= result[-1].end:
            result[-1] = OffsetRange(result[-1].start, max(result[-1].end, current.end))
        else:
            result.append(current)
    return tuple(result)


def subtract_ranges(ranges: Iterable[OffsetRange], subtrahend: Iterable[OffsetRange]) -> tuple[OffsetRange, ...]:
    """Return the offsets of `ranges` that are not in `subtrahend`. The time is linear in both, after sorting."""
    result = []
    subtracted = merge_ranges(subtrahend)
    index = 0
    for start, end in merge_ranges(ranges):
        position = start
        while index < len(subtracted) and subtracted[index].end <= start:
            index += 1
        for other in subtracted[index:]:
            if other.start >= end:
                break
            result.append(OffsetRange(position, other.start))
            position = other.end
        result.append(OffsetRange(position, end))
    return merge_ranges(result)


def intersect_ranges(ranges: Iterable[OffsetRange], others: Iterable[OffsetRange]) -> tuple[OffsetRange, ...]:
    """Return the offsets that are in both."""
    merged = merge_ranges(ranges)
    return subtract_ranges(merged, subtract_ranges(merged, others))


def ranges_of(offsets: Iterable[int]) -> tuple[OffsetRange, ...]:
    """Return single offsets as ascending ranges."""
    return merge_ranges(OffsetRange(offset, offset + 1) for offset in offsets)
