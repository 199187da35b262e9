"""Collects the samples about groups: their states, committed offsets, and how far they are behind."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice

from kbroker.api.context import Services
from kbroker.common import KafkaError
from kbroker.coordinator.group.classic.classic_group import ClassicGroup
from kbroker.exporter.families import MetricsPage, labels
from kbroker.exporter.replication import ITEMS_PER_STEP
from kbroker.storage.log.indexes import WouldBlock
from kbroker.storage.log.log import Log
from kbroker.storage.log.log_reads import timestamp_at
from kbroker.storage.log.segment_indexes import SegmentGone

# The end of a step: what a thread does before the next one, or None.
Step = Callable[[], None] | None
# The first records that a group has not read: their logs and offsets.
Unread = Sequence[tuple[Log, int]]

_GROUPS = "kafka_coordinator_group_groupmetadatamanager_"
_GROUP_COORDINATOR = "kafka_server_group_coordinator_metrics_"
# Timestamps that are looked up in one step. Each takes up to 50 µs, and longer in a thread.
_LOOKUPS_PER_STEP = 10


def collect_groups(services: Services, page: MetricsPage) -> Iterator[Step]:
    # By kind and state.
    states: Counter[tuple[str, str]] = Counter()
    offsets = 0
    for context in services.groups.runtime.contexts():
        shard = context.shard
        for group_id, group in list(shard.groups.items()):
            states[group.type_name, group.state_name] += 1
            page.add("kafka_consumergroup_members", group.member_count, labels(consumergroup=group_id))
            if states.total() % ITEMS_PER_STEP == 0:
                yield None
        for group_id, topics in list(shard.offsets.by_group.items()):
            yield None
            for topic, by_partition in list(topics.items()):
                offsets += len(by_partition)
                yield from _add_offsets(services, page, group_id, topic, {p: o.offset for p, o in by_partition.items()})
    for kind in services.groups.kinds:
        type_name = kind.type_name
        count = sum(states[type_name, state] for state in kind.state_names)
        page.add(_GROUP_COORDINATOR + "group_count", count, labels(protocol=type_name))
        if type_name == ClassicGroup.type_name:
            page.add(_GROUPS + "numgroups", count)
        for state in kind.state_names:
            if type_name == ClassicGroup.type_name:
                page.add(f"{_GROUPS}numgroups{state.lower()}", states[type_name, state])
            else:
                name = f"{_GROUP_COORDINATOR}{type_name}_group_count"
                page.add(name, states[type_name, state], labels(state=state.lower()))
    page.add(_GROUPS + "numoffsets", offsets)


def _add_offsets(
    services: Services, page: MetricsPage, group: str, topic: str, committed: dict[int, int]
) -> Iterator[Step]:
    """Add the offsets of one group in one topic. There is no lag for deleted partitions."""
    start = labels(consumergroup=group)[:-1]
    lags = known = 0
    unread: list[tuple[Log, int]] = []
    items = iter(committed.items())
    while step := list(islice(items, ITEMS_PER_STEP)):
        for index, offset in step:
            labelled = f'{start},partition="{index}",topic="{topic}"}}'
            page.add("kafka_consumergroup_current_offset", offset, labelled)
            partition = services.replicas.get(topic, index)
            if partition is not None:
                known += 1
                lag = partition.high_watermark - offset
                lags += lag
                page.add("kafka_consumergroup_lag", lag, labelled)
                if lag > 0:
                    unread.append((partition.log, offset))
        yield None
    labelled = f'{start},topic="{topic}"}}'
    page.add("kafka_consumergroup_current_offset_sum", sum(committed.values()), labelled)
    page.add("kafka_consumergroup_lag_sum", lags, labelled)
    timestamps: list[int] = []
    yield from _find_timestamps(unread, timestamps)
    oldest_ms = min((timestamp for timestamp in timestamps if timestamp >= 0), default=None)
    if oldest_ms is not None:
        age_ms = max(services.environment.clock.now_ms() - oldest_ms, 0)
        page.add("kafka_consumergroup_lag_seconds", age_ms / 1000, labelled)
    elif known and not unread:
        page.add("kafka_consumergroup_lag_seconds", 0, labelled)


def _find_timestamps(unread: Unread, timestamps: list[int]) -> Iterator[Step]:
    """Add the timestamps of records to the list: a batch header is read for each, if necessary from the disk."""
    on_disk: list[tuple[Log, int]] = []
    for number, (log, offset) in enumerate(unread, 1):
        try:
            timestamps += _timestamps_at([(log, offset)], wait=False)
        except WouldBlock:
            on_disk.append((log, offset))
        if number % _LOOKUPS_PER_STEP == 0:
            yield None
    for first in range(0, len(on_disk), _LOOKUPS_PER_STEP):
        yield partial(_find_on_disk_blocking, on_disk[first : first + _LOOKUPS_PER_STEP], timestamps)


def _find_on_disk_blocking(unread: Unread, timestamps: list[int]) -> None:
    timestamps += _timestamps_at(unread, wait=True)


def _timestamps_at(unread: Unread, *, wait: bool) -> Iterator[int]:
    for log, offset in unread:
        # Damage, and segments that are deleted meanwhile, are reported elsewhere.
        with suppress(KafkaError, SegmentGone):
            yield timestamp_at(log, offset, wait)
