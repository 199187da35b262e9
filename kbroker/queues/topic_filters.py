"""Composes the read filter of a topic's partitions from the topic's configs. Leader and followers use the same.

A fetch from a view applies the view's own filter after it (replica/fetch/partition_reads.py).
"""

from collections.abc import Callable, Sequence
from functools import partial

from kbroker.common import Buffer
from kbroker.config.queue_configs import levels_ms
from kbroker.config.topic_config import TopicConfig
from kbroker.queues.delay.delay_batches import visible_batch
from kbroker.queues.expiry import ExpiryFilter
from kbroker.replica.fetch.read_filter import ReadFilter, combine
from protocol.records.batch import MAX_DECOMPRESSED_BYTES, BatchHeader


class EmptyBatchFilter:
    """A ReadFilter that drops batches without records.

    The reader of filtered batches then sends a batch that suits the client (`PositionForm`). As it is stored, kafka-go
    would rewind to offset 1, and KafkaJS 2.2 fetch it again and again.
    """

    __slots__ = ()

    def filter_batch(self, batch: memoryview, header: BatchHeader, now_ms: int, max_bytes: int) -> Buffer | None:
        return batch if header.count else None


EMPTY_BATCHES = EmptyBatchFilter()


class DelayedRecordsFilter:
    """A ReadFilter. It also drops all hidden batches. `levels`: the delays in ms of the levels of the header DELAY."""

    __slots__ = ("_levels",)

    def __init__(self, levels: Sequence[int]) -> None:
        self._levels = levels

    def filter_batch(self, batch: memoryview, header: BatchHeader, now_ms: int, max_bytes: int) -> Buffer | None:
        return visible_batch(batch, header, max_bytes, self._levels)


def topic_filter(config: TopicConfig) -> ReadFilter | None:
    """Return the filter; None if consumers see all records.

    The delay filter comes first: the header timestamp of a batch with delayed records is the time of its arrival, and
    the filter restores the timestamp of the other records, which the expiry filter needs.
    """
    filters: list[ReadFilter] = []
    if config.kbroker_delay_enable:
        filters.append(DelayedRecordsFilter(levels_ms(config.kbroker_delay_levels)))
    if config.kbroker_dedup_window_ms:
        filters.append(EMPTY_BATCHES)
    if config.kbroker_ttl_enable or config.kbroker_ttl_ms:
        filters.append(ExpiryFilter(config.kbroker_ttl_enable, config.kbroker_ttl_ms))
    return combine(*filters)


def visible_records(config: TopicConfig) -> Callable[[memoryview, BatchHeader], Buffer | None] | None:
    """Return how a lookup by timestamp finds what consumers see of a batch; None if the topic has no delay.

    The other filters do not count: an expired record, or one that a view does not select, is a position as any other.
    """
    if not config.kbroker_delay_enable:
        return None
    return partial(visible_batch, max_bytes=MAX_DECOMPRESSED_BYTES, levels=levels_ms(config.kbroker_delay_levels))
