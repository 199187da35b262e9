"""Checks a replay before anything is created or sent: its records, its target topics and what they do to old records.

Times are milliseconds since 1970.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kbroker.archive.archive import Archive
from kbroker.archive.storage.storage import Storage
from kbroker.archive.topic_state import TopicInfo
from kbroker.client.admin import BROKER, TOPIC, TypedResource, describe_configs
from kbroker.client.cluster import ClusterClient
from kbroker.client.offsets import EARLIEST, LATEST, list_offsets
from kbroker.client.requests import BrokerError
from kbroker.common import TopicPartition
from kbroker.pipeline.cluster_admin import as_pipeline_errors
from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.replay.archived_rows import ReplayedTopic, read_topics
from kbroker.pipeline.replay.group_offsets import CommittedOffset, GroupPosition, require_no_members, select_committed
from kbroker.pipeline.replay.plan import ReplayRequest
from kbroker.pipeline.replay.producer import TargetStart
from kbroker.pipeline.replay.routing import Routing
from kbroker.pipeline.replay.selection import (
    EndOffsets,
    RecordTotals,
    SelectedRecords,
    Selection,
    archived_ends,
    check_regex,
    is_fully_selected,
    matching_files,
)
from protocol.errors import ErrorCode

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TIMESTAMP_TYPE = "message.timestamp.type"
# The topic configs that affect replayed records, with the broker configs that are their defaults.
_BROKER_DEFAULTS = {
    TIMESTAMP_TYPE: "log.message.timestamp.type",
    "message.timestamp.before.max.ms": "log.message.timestamp.before.max.ms",
    "message.timestamp.after.max.ms": "log.message.timestamp.after.max.ms",
    "cleanup.policy": "log.cleanup.policy",
}
TOPIC_CONFIGS = (*_BROKER_DEFAULTS, "max.message.bytes", "retention.ms")
# The broker configs for retention.ms with their units in milliseconds; the first that is set applies.
_BROKER_RETENTION = {"log.retention.ms": 1, "log.retention.minutes": 60_000, "log.retention.hours": 3_600_000}


@dataclass(frozen=True)
class ReplayTarget:
    """A target topic."""

    partitions: int
    configs: Mapping[str, str]  # of one that exists: TOPIC_CONFIGS with their effective values
    topic_id: str = ""  # hexadecimal, zeros if the broker has no topic ids; empty for one that the replay creates


@dataclass(frozen=True)
class ReplayContext:
    """The archive, the target cluster and the settings of a replay."""

    spark: "SparkSession"
    archive: Archive
    storage: Storage  # of the plans
    cluster: ClusterClient
    bootstrap: str
    notify: Callable[[str], None]  # called with messages for the user
    patience_s: float = 120.0  # for how long sending is retried without progress


@dataclass(frozen=True)
class PreparedReplay:
    """A replay that is ready to begin. Nothing is created or sent yet."""

    request: ReplayRequest
    records: SelectedRecords
    totals: Mapping[TopicPartition, RecordTotals]
    new_topics: Mapping[str, ReplayTarget]
    starts: Mapping[TopicPartition, TargetStart]  # of the target topics that exist
    warnings: tuple[str, ...]
    committed: tuple[CommittedOffset, ...]  # of the groups to restore

    def start_offset(self, target: TopicPartition) -> int:
        """Return the offset of the replay's first record in a target."""
        return self.starts[target].offset if target in self.starts else 0

    def group_positions(self) -> list[GroupPosition]:
        counts = {target: totals.rows for target, totals in self.totals.items()}
        return self.records.group_positions(self.committed, counts)


@as_pipeline_errors
def prepare_replay(context: ReplayContext, request: ReplayRequest, configs: Mapping[str, str]) -> PreparedReplay:
    """Check the archive and the target cluster. `configs`: for the topics that the replay creates.

    Raises PipelineError for anything that prevents the replay.
    """
    cluster, selection = context.cluster, request.selection
    if selection.key_regex is not None:
        check_regex(context.spark, selection.key_regex)
    archived = read_topics(context.archive, selection.topics)
    end_offsets = archived_ends(archived)
    sources = _source_partitions(archived, selection, end_offsets)
    infos = {name: each.state.topic for name, each in archived.items() if each.state.topic is not None}
    topics = _target_topics(cluster, infos, request, sources, configs)
    new_topics = {name: topic for name, topic in topics.items() if not topic.topic_id}
    effective_configs = _effective_configs(cluster, topics)
    partitions = {name: topics[name].partitions for name in request.names.values()}
    routing = Routing(request.names, partitions, request.by_key)
    routing.check(sources)
    by_time = routing.merges(sources)
    records = SelectedRecords(context.spark, archived, selection, end_offsets, routing, by_time)
    records.require_files()
    totals = _totals_from_metadata(records) or records.totals()
    if not totals:
        raise PipelineError("no record of the archive matches the selection")
    warnings = [
        f"another program has changed the table of topic {name} ({each.foreign_change}), so it may have other records "
        f"than the topic had"
        for name, each in archived.items()
        if each.foreign_change
    ]
    warnings += _check_topic_configs(effective_configs, totals)
    starts = read_starts(cluster, [target for target in routing.targets if target.topic not in new_topics])
    if not request.append:
        require_empty(starts)
    groups = {name: each.state.groups for name, each in archived.items()}
    committed = tuple(select_committed(groups, request.groups)) if request.groups else ()
    require_no_members(cluster, sorted({request.group_prefix + offset.group for offset in committed}))
    return PreparedReplay(request, records, totals, new_topics, starts, tuple(warnings), committed)


def require_empty(starts: Mapping[TopicPartition, TargetStart]) -> None:
    """Raise PipelineError for a target partition that has records."""
    for target, start in starts.items():
        if not start.was_empty:
            raise PipelineError(
                f"topic {target.topic} is not empty: partition {target.partition} ends at offset {start.offset}; "
                f"replay into another topic (--to), or after its records (--append)"
            )


def _source_partitions(
    archived: Mapping[str, ReplayedTopic], selection: Selection, end_offsets: EndOffsets
) -> list[TopicPartition]:
    """Return the partitions that can have selected records, according to the metadata of files."""
    files = matching_files(archived, selection, end_offsets)
    sources = {TopicPartition(topic, file.partition) for topic, of_topic in files.items() for file in of_topic}
    if not sources:
        raise PipelineError("no partition of the archive has records that match the selection")
    return sorted(sources)


def _target_topics(
    cluster: ClusterClient,
    archived: Mapping[str, TopicInfo],
    request: ReplayRequest,
    sources: list[TopicPartition],
    configs: Mapping[str, str],
) -> dict[str, ReplayTarget]:
    topics: dict[str, ReplayTarget] = {}
    for name in dict.fromkeys(request.names.values()):
        topic = describe_topic(cluster, name)
        if topic is None:
            source_topics = [source for source, target in request.names.items() if target == name]
            numbers = [source.partition for source in sources if source.topic in source_topics]
            topic = new_topic(archived, source_topics, max(numbers, default=0) + 1, configs)
        elif configs:
            raise PipelineError(f"topic {name} exists: --config is for topics that the replay creates")
        topics[name] = topic
    return topics


def _effective_configs(cluster: ClusterClient, topics: Mapping[str, ReplayTarget]) -> dict[str, Mapping[str, str]]:
    """Return the configs of each target topic; a new topic inherits the broker's defaults."""
    defaults = broker_defaults(cluster) if not all(topic.topic_id for topic in topics.values()) else {}
    return {name: topic.configs if topic.topic_id else {**defaults, **topic.configs} for name, topic in topics.items()}


def _totals_from_metadata(records: SelectedRecords) -> dict[TopicPartition, RecordTotals] | None:
    """Return the totals of each target; None if they cannot be computed without reading records."""
    if records.routing.by_key or records.selection.reads_records:
        return None
    targets = records.routing.targets
    by_target: dict[TopicPartition, RecordTotals] = {}
    for topic, files in records.files().items():
        for file in files:
            if not is_fully_selected(file, records.selection, records.end_offsets[topic][file.partition]):
                return None
            target = targets[records.routing.targets_of(TopicPartition(topic, file.partition))[0]]
            known = by_target.get(target, RecordTotals(0, file.from_ms, file.to_ms))
            from_ms, to_ms = min(known.from_ms, file.from_ms), max(known.to_ms, file.to_ms)
            by_target[target] = RecordTotals(known.rows + file.rows, from_ms, to_ms)
    return dict(sorted(by_target.items()))


def _check_topic_configs(
    configs: Mapping[str, Mapping[str, str]], totals: Mapping[TopicPartition, RecordTotals]
) -> list[str]:
    """Return warnings about the target topics. Raises PipelineError if one would not keep the timestamps."""
    now_ms = time.time_ns() // 1_000_000
    errors, warnings = [], []
    for name, topic_configs in configs.items():
        of_topic = [records for target, records in totals.items() if target.topic == name]
        if of_topic:
            from_ms, to_ms = min(records.from_ms for records in of_topic), max(records.to_ms for records in of_topic)
            errors += timestamp_errors(name, topic_configs, from_ms, to_ms, now_ms)
            warnings += retention_warnings(name, topic_configs, from_ms, now_ms)
    if errors:
        raise PipelineError(f"{'; '.join(errors)}: nothing was sent")
    return warnings


def describe_topic(cluster: ClusterClient, name: str) -> ReplayTarget | None:
    """Return a topic, None if it does not exist. Raises OSError, PipelineError."""
    try:
        topic = cluster.topic(name)
    except BrokerError as error:
        if error.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            return None
        raise PipelineError(f"cannot replay into {name}: {error}") from None
    configs = _describe_configs(cluster, TypedResource(TOPIC, name), f"topic {name}", TOPIC_CONFIGS)
    return ReplayTarget(len(topic.leaders), configs, topic.topic_id.hex())


def broker_defaults(cluster: ClusterClient) -> dict[str, str]:
    """Return the topic configs that a new topic inherits from the broker. Raises OSError, PipelineError.

    The request goes to any broker: those of a cluster are expected to have the same defaults.
    """
    node, _ = cluster.any_node()
    names = [*_BROKER_DEFAULTS.values(), *_BROKER_RETENTION]
    resource = TypedResource(BROKER, str(node))
    return as_topic_configs(_describe_configs(cluster, resource, f"broker {node}", names, node))


def as_topic_configs(broker_configs: Mapping[str, str]) -> dict[str, str]:
    """Convert a broker's configs to the topic configs whose defaults they are. Configs without a value are omitted."""
    configs = {name: broker_configs[source] for name, source in _BROKER_DEFAULTS.items() if source in broker_configs}
    for name, unit_ms in _BROKER_RETENTION.items():
        if name in broker_configs:
            return {**configs, "retention.ms": str(max(-1, int(broker_configs[name]) * unit_ms))}
    return configs


def _describe_configs(
    cluster: ClusterClient, resource: TypedResource, subject: str, names: Sequence[str], broker: int | None = None
) -> dict[str, str]:
    [described] = describe_configs(cluster, [resource], names, broker=broker)
    if described.error_code:
        raise PipelineError(str(BrokerError(described.error_code, f"configs of {subject}", described.error_message)))
    return {config.name: config.value for config in described.configs if config.value is not None}


def new_topic(
    archived: Mapping[str, TopicInfo], sources: Iterable[str], min_partitions: int, configs: Mapping[str, str]
) -> ReplayTarget:
    """Return a topic like the archived topics that are replayed into it; `configs` override theirs.

    It always has CreateTime, because records must keep their timestamps.
    """
    infos = [archived[source] for source in sources if source in archived]
    archived_configs = dict(infos[0].configs) if len(infos) == 1 else {}
    partitions = max([min_partitions, *(info.partitions for info in infos)])
    return ReplayTarget(partitions, {**archived_configs, TIMESTAMP_TYPE: "CreateTime", **configs})


def timestamp_errors(name: str, configs: Mapping[str, str], from_ms: int, to_ms: int, now_ms: int) -> list[str]:
    """Return why a topic would reject records with timestamps from `from_ms` to `to_ms`, or change the timestamps."""
    if configs.get(TIMESTAMP_TYPE) == "LogAppendTime":
        return [f"topic {name} replaces timestamps by the time of the append ({TIMESTAMP_TYPE}=LogAppendTime)"]
    errors = []
    for config, age_ms, description in (
        ("message.timestamp.before.max.ms", now_ms - from_ms, "as old"),
        ("message.timestamp.after.max.ms", to_ms - now_ms, "as far in the future"),
    ):
        max_ms = _integer(configs, config)
        if max_ms is not None and age_ms > max_ms:
            errors.append(f"topic {name} rejects records {description} as these ({config}={max_ms})")
    return errors


def retention_warnings(name: str, configs: Mapping[str, str], from_ms: int, now_ms: int) -> list[str]:
    """Return a warning if the topic's retention will delete records as old as `from_ms`."""
    retention_ms = _integer(configs, "retention.ms")
    if "delete" not in configs.get("cleanup.policy", "delete") or retention_ms is None:
        return []
    if not 0 <= retention_ms < now_ms - from_ms:
        return []
    return [
        f"topic {name} deletes records that are older than retention.ms={retention_ms}, and the oldest of these are: "
        f"set it to -1 to keep them (--config retention.ms=-1 if the replay creates the topic)"
    ]


def read_starts(cluster: ClusterClient, targets: Sequence[TopicPartition]) -> dict[TopicPartition, TargetStart]:
    """Return the current end offset of each partition. Raises OSError, BrokerError."""
    ends = list_offsets(cluster, dict.fromkeys(targets, LATEST))
    log_starts = list_offsets(cluster, dict.fromkeys(targets, EARLIEST))
    return {target: TargetStart(ends[target], log_starts[target] == ends[target]) for target in targets}


def max_batch_bytes(configs: Iterable[Mapping[str, str]], limit: int, overhead: int) -> int:
    """Return the batch size that all topics with these configs accept, at most `limit`."""
    allowed = [_integer(topic, "max.message.bytes") for topic in configs]
    return max(1, min([limit, *(size - overhead for size in allowed if size is not None)]))


def _integer(configs: Mapping[str, str], name: str) -> int | None:
    text = configs.get(name, "")
    return int(text) if text.lstrip("-").isdigit() else None
