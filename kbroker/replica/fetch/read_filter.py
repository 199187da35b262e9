"""Which records of a partition consumers see: all, unless the partition has a read filter.

Followers always read the log as it is. A filter drops batches, or rewrites them with fewer records, as compaction does.
"""

from __future__ import annotations

from typing import Protocol

from kbroker.common import Buffer
from protocol.fast.fetch import TopicKey
from protocol.records.batch import HIDDEN, BatchHeader, assemble_batch, parse_header


class ReadFilter(Protocol):
    """Decides by batch. It keeps no state of a read, since threads use it too."""

    def filter_batch(self, batch: memoryview, header: BatchHeader, now_ms: int, max_bytes: int) -> Buffer | None:
        """Return what consumers see of a complete batch: `batch` itself, a batch with fewer records, or None.

        A rewritten batch keeps its base offset, last offset and producer fields. Control batches must be kept.
        `now_ms`: the wall clock. Raises MalformedError for a batch that is damaged, or has more than `max_bytes`
        of decompressed records.
        """
        ...


class ReadView(Protocol):
    """A topic whose records are those of its source that pass `read_filter`; None for all of them.

    `source`: the name of that topic.
    """

    source: str
    read_filter: ReadFilter | None

    @property
    def is_current(self) -> bool:
        """Whether the topic still exists, with the same filter."""
        ...


class ReadViews(Protocol):
    def find(self, key: TopicKey) -> ReadView | None:
        """Return the view with a topic's name (str) or id (16 bytes); None if the topic is not a view."""
        ...


class FilterSequence:
    """Applies several filters, one after the other."""

    __slots__ = ("_filters",)

    def __init__(self, filters: tuple[ReadFilter, ...]) -> None:
        self._filters = filters

    def filter_batch(self, batch: memoryview, header: BatchHeader, now_ms: int, max_bytes: int) -> Buffer | None:
        kept: Buffer = batch
        for read_filter in self._filters:
            filtered = read_filter.filter_batch(memoryview(kept), header, now_ms, max_bytes)
            if filtered is None:
                return None
            if filtered is not kept:
                kept, header = filtered, parse_header(filtered)
        return kept


class HiddenBatchFilter:
    """Drops the batches that are for the broker only."""

    __slots__ = ()

    def filter_batch(self, batch: memoryview, header: BatchHeader, now_ms: int, max_bytes: int) -> Buffer | None:
        return None if header.attributes & HIDDEN else batch


HIDDEN_BATCHES = HiddenBatchFilter()


def combine(filters: list[ReadFilter]) -> ReadFilter | None:
    """Return one filter that applies all; None without filters."""
    if len(filters) > 1:
        return FilterSequence(tuple(filters))
    return filters[0] if filters else None


def empty_batch(last_offset: int, leader_epoch: int) -> bytearray:
    """Return a batch without records that moves the position of a consumer to `last_offset` + 1.

    Compaction leaves such batches too.
    """
    return assemble_batch(
        b"", count=0, last_offset_delta=0, base_timestamp=-1, max_timestamp=-1, base_offset=last_offset,
        leader_epoch=leader_epoch,
    )  # fmt: skip
