"""Read filters: which records of a partition consumers see. Without a filter they see all.

Followers always read the log as it is. A filter drops batches, or rewrites them with fewer records, as compaction does.
"""

from __future__ import annotations

from typing import Protocol

from kbroker.common import Buffer
from protocol.fast.fetch import TopicKey
from protocol.records.batch import (
    LENGTH_OVERHEAD,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_TIMESTAMP,
    PREFIX,
    BatchHeader,
    parse_header,
)
from protocol.records.control import EndTransactionMarker, build_end_marker


class ReadFilter(Protocol):
    """Filters one batch at a time. It has no state, since threads use it too."""

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


_NO_TRANSACTION = EndTransactionMarker(True, 0)


def combine(*filters: ReadFilter | None) -> ReadFilter | None:
    """Return one filter that applies all in order; None if all are None."""
    present = tuple([each for each in filters if each is not None])
    return FilterSequence(present) if len(present) > 1 else present[0] if present else None


def position_batch(last_offset: int, leader_epoch: int) -> bytearray:
    """Return a control batch that moves the position of a consumer to `last_offset` + 1.

    It is a commit marker of no producer, which all clients skip. A batch without records, as compaction leaves one,
    would be smaller, but KafkaJS 2.2 stays at its offset if a response has nothing else.
    """
    batch = build_end_marker(_NO_TRANSACTION, NO_PRODUCER_ID, NO_PRODUCER_EPOCH, NO_TIMESTAMP)
    # Neither field is covered by the CRC.
    PREFIX.pack_into(batch, 0, last_offset, len(batch) - LENGTH_OVERHEAD, leader_epoch)
    return batch
