"""The read filter of a topic with delayed delivery: consumers do not see delayed records before their delivery."""

from __future__ import annotations

from collections.abc import Sequence

from kbroker.common import Buffer
from kbroker.queues.delay.delay_batches import visible_batch
from protocol.records.batch import BatchHeader


class DelayedRecordsFilter:
    """A ReadFilter. It also drops all hidden batches. `levels`: the delays in ms of the levels of the header DELAY."""

    __slots__ = ("_levels",)

    def __init__(self, levels: Sequence[int]) -> None:
        self._levels = levels

    def filter_batch(self, batch: memoryview, header: BatchHeader, now_ms: int, max_bytes: int) -> Buffer | None:
        return visible_batch(batch, header, max_bytes, self._levels)
