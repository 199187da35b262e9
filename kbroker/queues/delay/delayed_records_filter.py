"""The read filter of a topic with delay: consumers do not see records that are stored to be delivered later."""

from __future__ import annotations

from collections.abc import Sequence

from kbroker.common import Buffer
from kbroker.queues.delay.delay_batches import visible_batch
from protocol.records.batch import BatchHeader


class DelayedRecordsFilter:
    """A ReadFilter. It drops all hidden batches, too. `levels`: the delays of the levels of the header DELAY in ms."""

    __slots__ = ("_levels",)

    def __init__(self, levels: Sequence[int]) -> None:
        self._levels = levels

    def filter_batch(self, batch: memoryview, header: BatchHeader, now_ms: int, max_bytes: int) -> Buffer | None:
        return visible_batch(batch, header, max_bytes, self._levels)
