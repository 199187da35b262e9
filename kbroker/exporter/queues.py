"""Collects the samples of delayed delivery and of idempotency keys."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from kbroker.exporter.metrics_page import MetricsPage
from kbroker.exporter.replication import ITEMS_PER_STEP

if TYPE_CHECKING:
    from kbroker.queues.queue_extensions import QueueExtensions


def collect_queues(queues: QueueExtensions, page: MetricsPage, now_ms: int) -> Iterator[None]:
    """Add the led partitions of topics with these features, and the totals. `now_ms`: the wall clock."""
    loading = 0
    for number, (partition, delivery) in enumerate(list(queues.delayed.deliveries().items())):
        if number % ITEMS_PER_STEP == 0:
            yield
        if not delivery.is_loaded:
            loading += 1
            continue
        labelled = f'{{partition="{partition.tp.partition}",topic="{partition.tp.topic}"}}'
        due_ms = delivery.state.pending.first_due_ms()
        page.add("kbroker_delay_pending_records", delivery.state.count, labelled)
        page.add("kbroker_delay_overdue_seconds", 0 if due_ms is None else max(now_ms - due_ms, 0) / 1000, labelled)
        if due_ms is not None:
            page.add("kbroker_delay_next_due_timestamp_seconds", due_ms / 1000, labelled)
    page.add("kbroker_delay_loading_partitions", loading)
    delay = queues.delayed.metrics
    page.add("kbroker_delay_delivered_records_total", delay.delivered_records)
    page.add("kbroker_delay_delivered_early_records_total", delay.delivered_early)
    page.add("kbroker_delay_cancelled_records_total", delay.cancelled)
    page.add("kbroker_delay_moved_records_total", delay.moved_records)
    page.add("kbroker_delay_lateness_seconds_total", delay.lateness_ms / 1000)
    page.add("kbroker_delay_max_lateness_seconds", delay.max_lateness_ms / 1000)
    for number, (partition, count) in enumerate(queues.key_counts().items()):
        if number % ITEMS_PER_STEP == 0:
            yield
        page.add("kbroker_dedup_keys", count, f'{{partition="{partition.tp.partition}",topic="{partition.tp.topic}"}}')
    page.add("kbroker_dedup_duplicate_records_total", queues.dedup_metrics.duplicates)
    page.add("kbroker_dedup_evicted_keys_total", queues.dedup_metrics.evicted)
