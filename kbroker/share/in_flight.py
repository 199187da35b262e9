"""The records in flight of a share partition, as ranges of offsets that are split on demand.

The ranges are adjacent: nothing between the first and the last one is missing. A range in which all records have the
same state takes as much memory as one record.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from kbroker.coordinator.share.share_partition_state import DeliveryState

FINISHED = (DeliveryState.ACKNOWLEDGED, DeliveryState.ARCHIVED)


class Span(NamedTuple):
    """Offsets from `first` to `last`, both included."""

    first: int
    last: int


@dataclass(slots=True, eq=False)
class InFlightRange:
    """Records of the same state. `lock_until_ms` and `due_ms` are monotonic.

    `delivery_count`: how often they were acquired. `member_id`: who has acquired them, until `lock_until_ms`. `due_ms`:
    an available record is not delivered before; 0 for at once. `is_hole`: there are no records that consumers see.
    `is_pending`: a change of the state is being persisted, and until its end there is no other one.
    """

    first: int
    last: int
    state: DeliveryState
    delivery_count: int = 0
    member_id: str = ""
    lock_until_ms: int = 0
    due_ms: int = 0
    is_hole: bool = False
    is_pending: bool = False

    @property
    def size(self) -> int:
        return self.last - self.first + 1

    def is_acquirable(self, now_ms: int) -> bool:
        return self.state is DeliveryState.AVAILABLE and not self.is_pending and self.due_ms <= now_ms

    def is_parked(self, now_ms: int) -> bool:
        """Return whether it waits for its time or its dead letter, and so does not hold the window."""
        if self.state is DeliveryState.AVAILABLE:
            return self.due_ms > now_ms
        return self.state is DeliveryState.ARCHIVING

    def continues(self, before: InFlightRange) -> bool:
        """Return whether it can be one range with the one before it."""
        return (
            self.state is before.state
            and not self.is_pending
            and not before.is_pending
            and self.is_hole == before.is_hole
            and (self.delivery_count == before.delivery_count or self.state in FINISHED)
            and self.member_id == before.member_id
            and self.lock_until_ms == before.lock_until_ms
            and self.due_ms == before.due_ms
        )


class InFlightRanges:
    """The ranges in order of offsets."""

    __slots__ = ("_ranges",)

    def __init__(self) -> None:
        self._ranges: list[InFlightRange] = []

    def __iter__(self) -> Iterator[InFlightRange]:
        return iter(self._ranges)

    def __len__(self) -> int:
        return len(self._ranges)

    def append(self, added: InFlightRange) -> None:
        """Add a range behind the last one."""
        assert not self._ranges or self._ranges[-1].last + 1 == added.first
        self._ranges.append(added)

    def overlapping(self, span: Span) -> list[InFlightRange]:
        """Return the ranges that have offsets of a span, without splitting them."""
        ranges, index = self._ranges, self._index(span.first)
        end = index
        while end < len(ranges) and ranges[end].first <= span.last:
            end += 1
        return ranges[index:end]

    def cut(self, span: Span) -> list[InFlightRange]:
        """Return the ranges of a span. Those that begin before it or end behind it are split."""
        self._split(span.first)
        self._split(span.last + 1)
        return self.overlapping(span)

    def drop_finished(self) -> int:
        """Remove the finished ranges at the start. Returns the number of their records."""
        count = offsets = 0
        for each in self._ranges:
            if each.state not in FINISHED or each.is_pending:
                break
            count += 1
            offsets += each.size
        del self._ranges[:count]
        return offsets

    def merge(self) -> None:
        """Join the ranges that continue one another."""
        merged: list[InFlightRange] = []
        for each in self._ranges:
            if merged and each.continues(merged[-1]):
                merged[-1].last = each.last
            else:
                merged.append(each)
        self._ranges = merged

    def _index(self, offset: int) -> int:
        """Return the index of the range with an offset, or of the first one behind it."""
        index = bisect_right(self._ranges, offset, key=lambda each: each.first) - 1
        return index + 1 if index < 0 or self._ranges[index].last < offset else index

    def _split(self, offset: int) -> None:
        """Split the range with an offset, so that a range begins there."""
        index = self._index(offset)
        if index == len(self._ranges) or self._ranges[index].first >= offset:
            return
        each = self._ranges[index]
        assert not each.is_pending
        rest = InFlightRange(
            offset, each.last, each.state, each.delivery_count, each.member_id, each.lock_until_ms, each.due_ms,
            each.is_hole,
        )  # fmt: skip
        each.last = offset - 1
        self._ranges.insert(index + 1, rest)
