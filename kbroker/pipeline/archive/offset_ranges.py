"""Offset ranges and set operations on them (pure)."""

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
    """Return the offsets of `ranges` that are not in `subtrahend`."""
    result = []
    subtracted = merge_ranges(subtrahend)
    for start, end in merge_ranges(ranges):
        position = start
        for other in subtracted:
            if other.end <= position or other.start >= end:
                continue
            result.append(OffsetRange(position, other.start))
            position = other.end
        result.append(OffsetRange(position, end))
    return merge_ranges(result)


def intersect_ranges(ranges: Iterable[OffsetRange], others: Iterable[OffsetRange]) -> tuple[OffsetRange, ...]:
    """Return the offsets that are in both."""
    merged_others = merge_ranges(others)
    return merge_ranges(
        OffsetRange(max(start, other.start), min(end, other.end))
        for start, end in merge_ranges(ranges)
        for other in merged_others
    )


def ranges_of(offsets: Iterable[int]) -> tuple[OffsetRange, ...]:
    """Return single offsets as ascending ranges."""
    return merge_ranges(OffsetRange(offset, offset + 1) for offset in offsets)
