"""The read filter of a topic's partitions, on the leader and on followers, composed from its configs.

A fetch of a view applies the filter of the view after it (replica/fetch/partition_reads.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kbroker.config.delay_levels import levels_ms
from kbroker.queues.dedup.empty_batch_filter import EMPTY_BATCHES
from kbroker.queues.delay.delayed_records_filter import DelayedRecordsFilter
from kbroker.queues.expiry.expiry_filter import ExpiryFilter
from kbroker.replica.fetch.read_filter import ReadFilter, combine

if TYPE_CHECKING:
    from kbroker.config.topic_config import TopicConfig


def topic_filter(config: TopicConfig) -> ReadFilter | None:
    """Return the filter; None if consumers see all records.

    What is hidden comes first: the timestamp of a batch with delayed records is their arrival, and the filter of delay
    restores that of the others.
    """
    filters: list[ReadFilter] = []
    if config.kbroker_delay_enable:
        filters.append(DelayedRecordsFilter(levels_ms(config.kbroker_delay_levels)))
    if config.kbroker_dedup_window_ms:
        filters.append(EMPTY_BATCHES)
    if config.kbroker_ttl_enable or config.kbroker_ttl_ms:
        filters.append(ExpiryFilter(config.kbroker_ttl_enable, config.kbroker_ttl_ms))
    return combine(filters)
