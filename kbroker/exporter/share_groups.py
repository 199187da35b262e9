"""Collects the samples about share groups: records in flight on the leaders, lag on the share coordinators."""

from collections import Counter
from collections.abc import Iterator

from kbroker.api.context import Services
from kbroker.coordinator.share.share_partition_state import UNINITIALIZED_START_OFFSET, DeliveryState
from kbroker.exporter.families import MetricsPage, labels
from kbroker.exporter.replication import ITEMS_PER_STEP
from kbroker.share.delivery import AcknowledgeType
from kbroker.share.in_flight import FINISHED

_PARTITIONS = "kafka_server_sharepartitionmetrics_"
_OWN = "kbroker_share_group_"
_ACKNOWLEDGE_TYPES = {
    name.capitalize(): value for name, value in vars(AcknowledgeType).items() if isinstance(value, int)
}


def collect_share_groups(services: Services, page: MetricsPage) -> Iterator[None]:
    stats = services.share.stats
    for name, kind in _ACKNOWLEDGE_TYPES.items():
        counted = stats.acknowledged[kind]
        page.add("kafka_server_sharegroupmetrics_recordacknowledgements_total", counted, labels(ackType=name))
    for state in DeliveryState:
        page.add("kbroker_share_records_total", stats.states[state], labels(state=state.name.capitalize()))
    yield from _add_partitions(services, page)
    yield from _add_lags(services, page)


def _add_partitions(services: Services, page: MetricsPage) -> Iterator[None]:
    """Add the records in flight of the partitions that this broker leads and members fetch."""
    in_flight: Counter[tuple[str, DeliveryState]] = Counter()
    deliveries: dict[str, int] = {}
    for key, leader in list(services.share.leaders.items()):
        state = leader.state
        if state is None or leader.failure is not None:
            continue
        ranges = state.ranges
        tp = leader.partition.tp
        labelled = labels(group=key.group_id, topic=tp.topic, partition=tp.partition)
        page.add(_PARTITIONS + "inflightmessagecount", state.end + 1 - state.start, labelled)
        page.add(_PARTITIONS + "inflightbatchcount", len(ranges), labelled)
        page.add(_PARTITIONS + "acquisitionlocktimeout_total", leader.lock_timeouts, labelled)
        for each in ranges:
            in_flight[key.group_id, each.state] += each.size
            if each.state not in FINISHED:
                deliveries[key.group_id] = max(deliveries.get(key.group_id, 0), each.delivery_count)
        yield
    for (group, delivery_state), count in in_flight.items():
        page.add(_OWN + "records", count, labels(group=group, state=delivery_state.name.capitalize()))
    for group, count in deliveries.items():
        page.add(_OWN + "max_delivery_count", count, labels(group=group))
    yield


def _add_lags(services: Services, page: MetricsPage) -> Iterator[None]:
    """Add the lag of each group in each topic, as far as this broker has replicas of the partitions."""
    lags: Counter[tuple[str, str]] = Counter()
    for context in services.share_states.runtime.contexts():
        for number, (key, current) in enumerate(list(context.shard.partitions.items()), 1):
            topic, state = services.metadata.topics_by_id.get(key.topic_id), current.state
            partition = None if topic is None else services.replicas.get(topic.name, key.partition)
            if partition is not None and state.start_offset != UNINITIALIZED_START_OFFSET:
                lag = partition.high_watermark - state.start_offset - max(state.delivery_complete_count, 0)
                lags[key.group_id, partition.tp.topic] += max(lag, 0)
            if number % ITEMS_PER_STEP == 0:
                yield
        yield
    for (group, topic_name), lag in lags.items():
        page.add(_OWN + "lag", lag, labels(group=group, topic=topic_name))
    yield
