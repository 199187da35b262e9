"""Collects the samples about archives, and about history that consumers read from them.

How far archives lag behind is measured in the background. So a scrape has what was measured after the one before it.
"""

from collections.abc import Iterator

from kbroker.api.context import Services
from kbroker.exporter.families import MetricsPage, labels
from kbroker.exporter.replication import ITEMS_PER_STEP


def collect_history(services: Services, page: MetricsPage) -> Iterator[None]:
    history, archived = services.replicas.history, []
    for number, partition in enumerate(list(services.replicas.partitions.values())):
        if number % ITEMS_PER_STEP == 0:
            yield
        if partition.is_leader and partition.log.config.kbroker_archive_table:
            archived.append(partition)
    history.measure_lags(archived)
    now_ms = services.environment.clock.now_ms()
    for partition, lag in history.lags.items():
        labelled = f'{{partition="{partition.tp.partition}",topic="{partition.tp.topic}"}}'
        page.add("kbroker_archive_lag_records", lag.records, labelled)
        seconds = 0.0 if lag.timestamp < 0 else max(0, now_ms - lag.timestamp) / 1000
        page.add("kbroker_archive_lag_seconds", seconds, labelled)
    page.add("kbroker_archive_unknown_partitions", sum(partition not in history.lags for partition in archived))
    page.add("kbroker_history_bytes_total", history.bytes_out)
    page.add("kbroker_history_cache_bytes", history.cache.size)
    page.add("kbroker_history_process_starts_total", history.client.starts)
    for kind, count in history.client.failures.items():
        page.add("kbroker_history_failures_total", count, labels(kind=kind))
