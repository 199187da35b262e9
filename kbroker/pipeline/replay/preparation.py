"""Checks a replay before anything is created or sent: its records, its target topics, its groups.

Times are milliseconds since 1970.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kbroker.client.cluster import ClusterClient
from kbroker.common import TopicPartition
from kbroker.pipeline.archive.archive import Archive
from kbroker.pipeline.archive.manifest.model import ArchiveState
from kbroker.pipeline.cluster_admin import as_pipeline_errors
from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.replay.group_offsets import CommittedOffset, GroupPosition, require_no_members, select_committed
from kbroker.pipeline.replay.plan import ReplayRequest
from kbroker.pipeline.replay.progress import TargetStart
from kbroker.pipeline.replay.routing import Routing
from kbroker.pipeline.replay.selection import (
    EndOffsets,
    RecordTotals,
    SelectedRecords,
    archived_ends,
    check_regex,
    is_fully_selected,
    matching_files,
    matching_parts,
)
from kbroker.pipeline.replay.target_topics import (
    DescribedTopic,
    NewTargetTopic,
    broker_defaults,
    describe_topic,
    new_topic,
    read_starts,
    retention_warnings,
    timestamp_errors,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class ReplayContext:
    """The archive, the target cluster and the settings of a replay."""

    spark: "SparkSession"
    archive: Archive
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
    new_topics: Mapping[str, NewTargetTopic]
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
    cluster, selection, state = context.cluster, request.selection, context.archive.state()
    if selection.key_regex is not None:
        check_regex(context.spark, selection.key_regex)
    end_offsets = archived_ends(state, selection.topics)
    sources = _source_partitions(context, state, request, end_offsets)
    existing_topics, new_topics = _target_topics(cluster, state, request, sources, configs)
    topic_configs = _effective_configs(cluster, existing_topics, new_topics)
    topics: dict[str, DescribedTopic | NewTargetTopic] = {**existing_topics, **new_topics}
    partitions = {name: topics[name].partitions for name in request.names.values()}
    routing = Routing(request.names, partitions, request.by_key)
    routing.check(sources)
    by_time = routing.merges(sources)
    records = SelectedRecords(context.spark, context.archive, state, selection, end_offsets, routing, by_time)
    records.require_files()
    totals = _totals_from_manifest(records) or records.totals()
    if not totals:
        raise PipelineError("no record of the archive matches the selection")
    warnings = _check_topic_configs(topic_configs, totals)
    starts = {
        TopicPartition(name, number): start
        for name in existing_topics
        for number, start in enumerate(read_starts(cluster, name, partitions[name]))
    }
    if not request.append:
        require_empty(starts)
    committed = tuple(select_committed(state.groups, request.groups, selection.topics)) if request.groups else ()
    require_no_members(cluster, sorted({request.group_prefix + offset.group for offset in committed}))
    return PreparedReplay(request, records, totals, new_topics, starts, tuple(warnings), committed)


def require_topics(archive: Archive, topics: Iterable[str]) -> None:
    """Raise PipelineError for a topic that is not in the archive."""
    state = archive.state()
    archived = {*state.topics, *(partition.topic for partition in state.covered)}
    for topic in topics:
        if topic not in archived:
            contents = f"it has {', '.join(sorted(archived))}" if archived else "it is empty"
            raise PipelineError(f"{archive.storage.root}: the archive has no topic {topic}; {contents}")


def require_empty(starts: Mapping[TopicPartition, TargetStart]) -> None:
    """Raise PipelineError for a target partition that has records."""
    for target, start in starts.items():
        if not start.was_empty:
            raise PipelineError(
                f"topic {target.topic} is not empty: partition {target.partition} ends at offset {start.offset}; "
                f"replay into another topic (--to), or after its records (--append)"
            )


def _source_partitions(
    context: ReplayContext, state: ArchiveState, request: ReplayRequest, end_offsets: EndOffsets
) -> list[TopicPartition]:
    """Return the partitions that can have selected records, according to the manifest."""
    require_topics(context.archive, request.selection.topics)
    sources = {
        TopicPartition(file.topic, part.partition)
        for file in matching_files(state, request.selection, end_offsets)
        for part in matching_parts(file, request.selection, end_offsets)
    }
    if not sources:
        raise PipelineError("no partition of the archive has records that match the selection")
    return sorted(sources)


def _target_topics(
    cluster: ClusterClient,
    state: ArchiveState,
    request: ReplayRequest,
    sources: list[TopicPartition],
    configs: Mapping[str, str],
) -> tuple[dict[str, DescribedTopic], dict[str, NewTargetTopic]]:
    """Return the target topics that exist, and those that the replay creates."""
    existing: dict[str, DescribedTopic] = {}
    new: dict[str, NewTargetTopic] = {}
    for name in dict.fromkeys(request.names.values()):
        topic = describe_topic(cluster, name)
        if topic is not None:
            existing[name] = topic
            continue
        source_topics = [source for source, target in request.names.items() if target == name]
        min_partitions = max((source.partition + 1 for source in sources if source.topic in source_topics), default=1)
        new[name] = new_topic(state, source_topics, min_partitions, configs)
    if existing and configs:
        raise PipelineError(f"topic {next(iter(existing))} exists: --config is for topics that the replay creates")
    return existing, new


def _effective_configs(
    cluster: ClusterClient, existing: Mapping[str, DescribedTopic], new: Mapping[str, NewTargetTopic]
) -> dict[str, Mapping[str, str]]:
    """Return the configs of each target topic; a new topic inherits the broker's defaults."""
    defaults = broker_defaults(cluster) if new else {}
    return {
        **{name: topic.configs for name, topic in existing.items()},
        **{name: {**defaults, **topic.configs} for name, topic in new.items()},
    }


def _totals_from_manifest(records: SelectedRecords) -> dict[TopicPartition, RecordTotals] | None:
    """Return the totals of each target; None if they cannot be computed without reading records."""
    if records.routing.by_key or records.selection.reads_records:
        return None
    targets = records.routing.targets
    by_target: dict[TopicPartition, RecordTotals] = {}
    for file in records.files():
        for part in matching_parts(file, records.selection, records.end_offsets):
            if not is_fully_selected(part, records.selection, records.end_offsets[file.topic][part.partition]):
                return None
            target = targets[records.routing.targets_of(TopicPartition(file.topic, part.partition))[0]]
            known = by_target.get(target, RecordTotals(0, 0, part.from_ms, part.to_ms))
            by_target[target] = RecordTotals(
                known.rows + part.rows,
                known.size + part.bytes,
                min(known.from_ms, part.from_ms),
                max(known.to_ms, part.to_ms),
            )
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
