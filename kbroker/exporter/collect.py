"""Collects the samples of a scrape.

This runs on the event loop, in steps of about a millisecond, between which requests are served. So the samples of a
page are not taken at the same instant.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from importlib import metadata
from platform import python_version
from typing import NamedTuple

from kbroker.api.context import Services
from kbroker.config.broker.broker_config import INTER_BROKER
from kbroker.exporter.families import MetricsPage, labels
from kbroker.exporter.groups import Step, collect_groups
from kbroker.exporter.history import collect_history
from kbroker.exporter.replication import (
    ITEMS_PER_STEP,
    ElectionCounter,
    add_replicas,
    collect_cluster,
    collect_fetchers,
    is_under_replicated,
)
from kbroker.exporter.share_groups import collect_share_groups
from kbroker.queues.queue_extensions import QueueExtensions
from kbroker.replica.fetcher.replica_fetcher import ReplicaFetcherManager
from kbroker.replica.partition import Partition
from kbroker.replica.produce.produce_response import DelayedProduce
from kbroker.runtime.metrics import Histogram, RequestStats
from kbroker.server.error_reporter import api_name
from kbroker.server.interbroker.inter_broker_server import InterBrokerServer
from kbroker.server.socket_server import SocketServer
from kbroker.telemetry.subscriptions import CLIENT_LABELS
from protocol.apis import ApiKey
from protocol.errors import ErrorCode

# In Kafka's names of Fetch metrics.
CONSUMER, FOLLOWER = "Consumer", "Follower"
_TOPICS = "kafka_server_brokertopicmetrics_"
_REQUESTS = "kafka_network_requestmetrics_"
_REPLICAS = "kafka_server_replicamanager_"
_SOCKETS = "kafka_server_socket_server_metrics_connection_"
_SESSIONS = "kafka_server_fetchsessioncache_numincrementalfetch"


class MetricSources(NamedTuple):
    services: Services
    queues: QueueExtensions
    server: SocketServer
    inter_broker: InterBrokerServer | None
    fetchers: ReplicaFetcherManager | None
    elections: ElectionCounter
    loop_delay: Histogram


def collect_metrics(sources: MetricSources, page: MetricsPage) -> Iterator[Step]:
    """Add all samples to the page; each step is short. Yields what must be done in a thread before the next step."""
    labelled = labels(version=metadata.version("kbroker"), python_version=python_version())
    page.add("kbroker_build_info", 1, labelled)
    yield partial(_add_disk_blocking, sources.services, page)
    _add_requests(sources, page)
    yield None
    _add_connections(sources, page)
    page.add_histogram("kbroker_event_loop_delay_seconds", sources.loop_delay)
    yield from collect_cluster(sources.services, sources.elections, page)
    yield from collect_fetchers(sources.services, sources.fetchers, page)
    yield from _add_partitions(sources.services, page)
    yield from _add_waiting_fetches(sources.services, page)
    yield from collect_groups(sources.services, page)
    yield from collect_share_groups(sources.services, page)
    yield from collect_history(sources.services, page)
    yield from _add_client_metrics(sources.services, page)
    yield from collect_queues(sources.queues, page, sources.services.environment.clock.now_ms())


def _add_disk_blocking(services: Services, page: MetricsPage) -> None:
    """Add the space of the file system, unless the disk does not say it."""
    with suppress(OSError):
        size, free = services.environment.disk.usage(services.replicas.logs.path)
        page.add("kbroker_disk_size_bytes", size)
        page.add("kbroker_disk_free_bytes", free)


def _add_requests(sources: MetricSources, page: MetricsPage) -> None:
    counts: Counter[tuple[str, int]] = Counter()
    sizes: Counter[tuple[str, str]] = Counter()
    durations: dict[str, list[Histogram]] = {}
    of_clients: Counter[int] = Counter()
    for stats, sender in _request_stats(sources):
        if not stats.requests:
            continue
        if sender == CONSUMER:
            of_clients[stats.api_key] += stats.requests
        for name in _request_names(stats.api_key, sender):
            counts[name, stats.version] += stats.requests
            durations.setdefault(name, []).append(stats)
            sizes[name, "requestbytes_total"] += stats.bytes_in
            sizes[name, "responsebytes_total"] += stats.bytes_out
    for (name, version), count in counts.items():
        page.add(_REQUESTS + "requests_total", count, labels(request=name, version=version))
    for name, histograms in durations.items():
        page.add_histogram(_REQUESTS + "totaltime_seconds", Histogram.merged(histograms), request=name)
    for (name, size), total in sizes.items():
        page.add(_REQUESTS + size, total, labels(request=name))
    errors = Counter(sources.server.context.errors.errors)
    failed: Counter[int] = Counter()
    for (api, _), count in errors.items():
        failed[api] += count
    if sources.inter_broker is not None:
        errors.update(sources.inter_broker.context.errors.errors)
    for (api, code), count in sorted(errors.items()):
        page.add(_REQUESTS + "errors_total", count, labels(request=api_name(api), error=ErrorCode(code).name))
    for api, name in ((ApiKey.PRODUCE, "produce"), (ApiKey.FETCH, "fetch")):
        page.add(f"{_TOPICS}total{name}requests_total", of_clients[api])
        page.add(f"{_TOPICS}failed{name}requests_total", failed[api])


def _request_stats(sources: MetricSources) -> Iterator[tuple[RequestStats, str]]:
    for stats in sources.server.context.dispatch.stats():
        yield stats, CONSUMER
    if sources.inter_broker is not None:
        for stats in sources.inter_broker.context.dispatch.stats():
            yield stats, FOLLOWER


def _request_names(api_key: int, sender: str) -> tuple[str, ...]:
    """Return the API's names in Kafka's metrics, which count the fetches of consumers and of followers separately."""
    return ("Fetch", f"Fetch{sender}") if api_key == ApiKey.FETCH else (api_name(api_key),)


def _add_connections(sources: MetricSources, page: MetricsPage) -> None:
    server = sources.server
    closed = Counter(server.context.errors.closed)
    for listener in server.listeners.values():
        _add_listener(page, listener.name, listener.connections, listener.accepted)
    if sources.inter_broker is not None:
        brokers = sources.inter_broker
        _add_listener(page, INTER_BROKER, len(brokers.connections) + len(brokers.strangers), brokers.accepted)
        closed.update(brokers.context.errors.closed)
    page.add("kafka_network_socketserver_expiredconnectionskilledcount", server.expired)
    page.add("kbroker_unsent_response_bytes", server.context.unsent_bytes)
    page.add("kbroker_refusals_suppressed_total", server.context.errors.suppressed)
    for reason, count in sorted(closed.items()):
        page.add("kbroker_connections_closed_total", count, labels(reason=reason))
    for quota, (responses, total_ms) in sorted(server.context.quotas.throttled.items()):
        page.add("kbroker_throttled_responses_total", responses, labels(quota=quota))
        page.add("kbroker_throttle_seconds_total", total_ms / 1000, labels(quota=quota))


def _add_listener(page: MetricsPage, name: str, connections: int, accepted: int) -> None:
    listener = labels(listener=name)
    page.add(_SOCKETS + "count", connections, listener)
    page.add(_SOCKETS + "creation_total", accepted, listener)
    page.add(_SOCKETS + "close_total", accepted - connections, listener)


def _add_partitions(services: Services, page: MetricsPage) -> Iterator[None]:
    replicas = services.replicas
    image = services.metadata
    all_partitions = list(replicas.partitions.values())
    messages: Counter[str] = Counter()
    size: Counter[str] = Counter()
    leaders = under_replicated = reassigning = under_min = at_min = offline = producers = replicated = reassigned = 0
    for number, partition in enumerate(all_partitions):
        if number % ITEMS_PER_STEP == 0:
            yield
        tp, log = partition.tp, partition.log
        labelled = f'{{partition="{tp.partition}",topic="{tp.topic}"}}'
        topic = image.topics_by_id.get(partition.topic_id)
        if topic is not None:
            registration = topic.partitions[tp.partition]
            add_replicas(page, labelled, partition, registration)
            if partition.is_leader:
                under_replicated += is_under_replicated(registration)
                reassigning += registration.is_reassigning
                min_isr = min(log.config.min_insync_replicas, len(registration.replicas))
                under_min += len(registration.isr) < min_isr
                at_min += len(registration.isr) == min_isr
        _add_log(page, labelled, partition)
        messages[tp.topic] += partition.records_in
        size[tp.topic] += partition.bytes_in
        replicated += partition.replication_bytes_in
        reassigned += partition.reassignment_bytes_in
        leaders += partition.is_leader
        producers += len(log.producers)
        offline += log.health.offline is not None
    page.add(_REPLICAS + "partitioncount", len(all_partitions))
    page.add(_REPLICAS + "leadercount", leaders)
    page.add(_REPLICAS + "underreplicatedpartitions", under_replicated)
    page.add(_REPLICAS + "reassigningpartitions", reassigning)
    page.add(_REPLICAS + "underminisrpartitioncount", under_min)
    page.add(_REPLICAS + "atminisrpartitioncount", at_min)
    page.add(_REPLICAS + "isrshrinks_total", replicas.isr_manager.shrinks)
    page.add(_REPLICAS + "isrexpands_total", replicas.isr_manager.expands)
    page.add(_REPLICAS + "failedisrupdates_total", replicas.isr_manager.failed_updates)
    page.add("kbroker_logs_stray", replicas.logs.stray_logs)
    page.add(_REPLICAS + "offlinereplicacount", offline + len(replicas.maintenance.unopened))
    page.add(_REPLICAS + "produceridcount", producers)
    page.add("kbroker_write_health", int(replicas.write_health.health))
    stats = replicas.maintenance.stats
    page.add("kbroker_compactions_running", len(replicas.maintenance.compactions))
    page.add("kbroker_compactions_total", stats.compactions)
    page.add("kbroker_compaction_failures_total", stats.compaction_failures)
    page.add("kbroker_compaction_seconds_total", stats.compaction_ms / 1000)
    page.add("kbroker_compaction_reclaimed_bytes_total", stats.reclaimed_bytes)
    page.add("kbroker_retention_segments_total", stats.retention_segments)
    yield
    _add_traffic(services, page, messages, size)
    page.add(_TOPICS + "replicationbytesin_total", replicas.removed_totals.replication_bytes_in + replicated)
    page.add(_TOPICS + "replicationbytesout_total", services.fetching.replication_bytes_out)
    page.add(_TOPICS + "reassignmentbytesin_total", replicas.removed_totals.reassignment_bytes_in + reassigned)
    page.add(_TOPICS + "reassignmentbytesout_total", services.fetching.reassignment_bytes_out)


def _add_log(page: MetricsPage, labelled: str, partition: Partition) -> None:
    log = partition.log
    page.add("kafka_log_log_size", log.size_bytes, labelled)
    page.add("kafka_log_log_numlogsegments", len(log.segments), labelled)
    page.add("kafka_log_log_logstartoffset", log.log_start_offset, labelled)
    page.add("kafka_log_log_logendoffset", log.log_end_offset, labelled)
    if log.health.offline is not None:
        page.add("kbroker_log_offline", 1, labelled)
    if log.health.full:
        page.add("kbroker_log_full", 1, labelled)


def _add_traffic(services: Services, page: MetricsPage, messages: Counter[str], size: Counter[str]) -> None:
    """Add the traffic of each topic, and the totals, which include deleted topics."""
    removed = services.replicas.removed_totals
    image = services.metadata
    out: Counter[str] = Counter()
    total_sent = 0
    for key, sent in list(services.fetching.bytes_out.items()):
        topic = image.topics.get(key) if isinstance(key, str) else image.topics_by_id.get(key)
        total_sent += sent
        if topic is not None:
            out[topic.name] += sent
    for family, by_topic, total in (
        ("messagesin_total", messages, removed.records_in + messages.total()),
        ("bytesin_total", size, removed.bytes_in + size.total()),
        ("bytesout_total", out, total_sent),
    ):
        page.add(_TOPICS + family, total)
        for name, value in by_topic.items():
            page.add(_TOPICS + family, value, labels(topic=name))


def _add_waiting_fetches(services: Services, page: MetricsPage) -> Iterator[None]:
    """Add the requests in purgatory, and fetch sessions."""
    operations = services.replicas.purgatory.keys()
    produce = sum(isinstance(operation, DelayedProduce) for operation in operations)
    name = "kafka_server_delayedoperationpurgatory_purgatorysize"
    page.add(name, produce, labels(delayedoperation="Produce"))
    page.add(name, len(operations) - produce, labels(delayedoperation="Fetch"))
    yield
    sessions = services.fetching.sessions.all()
    page.add(_SESSIONS + "sessions", len(sessions))
    page.add(_SESSIONS + "partitionscached", sum(len(session.partitions) for session in sessions))
    yield


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


def _add_client_metrics(services: Services, page: MetricsPage) -> Iterator[None]:
    """Add the last samples of each client (KIP-714), with its labels and the client's."""
    manager = services.client_metrics
    now_ms = services.environment.clock.mono_ms()
    live = [instance for instance in manager.instances.values() if instance.expires_ms > now_ms]
    page.add("kbroker_client_instances", len(live))
    page.add("kbroker_client_pushes_cut_total", manager.cut_pushes)
    number = 0
    for instance in live:
        own = dict(zip(CLIENT_LABELS, instance.client, strict=False))
        rendered: dict[tuple[tuple[str, str], ...], str] = {}
        for key, value in instance.samples.items():
            number += 1
            if number % ITEMS_PER_STEP == 0:
                yield
            labelled = rendered.get(key.labels)
            if labelled is None:
                labelled = rendered[key.labels] = labels(**own, **dict(key.labels))
            page.add_reported(key.kind, key.name, value, labelled)
    yield
