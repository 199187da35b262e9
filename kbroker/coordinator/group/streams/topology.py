"""The topology of a Kafka Streams application, configured for the topics that exist (pure).

A subtopology is a part of the application that is processed in one task per partition. It reads source topics, and
repartition topics that others write to: these and the changelogs of its state are internal topics. The number of
partitions of a repartition topic follows from the topics of the subtopology that writes to it, or from those with which
it is joined; that of a changelog is the number of tasks. The coordinator creates the internal topics.

As in Kafka 4.4, the results depend on the order of the subtopologies in a HashMap if several of them write to the same
internal topic.
"""

from collections import ChainMap
from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from typing import NamedTuple

from kbroker.common import KafkaError
from kbroker.coordinator.java_collections import hash_map_order
from kbroker.metadata.topics.topic_requests import NewTopic
from kbroker.runtime.turns import paced
from protocol.errors import ErrorCode
from protocol.messages.k88_streams_groups import HeartbeatSubtopology, StreamsTopicInfo

# As many topics are named in the text of a status.
MAX_NAMED = 3


class Status(IntEnum):
    """What the members of a group have to know, apart from their tasks."""

    STALE_TOPOLOGY = 0
    MISSING_SOURCE_TOPICS = 1
    INCORRECTLY_PARTITIONED_TOPICS = 2
    MISSING_INTERNAL_TOPICS = 3
    SHUTDOWN_APPLICATION = 4
    ASSIGNMENT_DELAYED = 5
    MISSING_CLIENT_TAGS = 6


class StatusDetail(NamedTuple):
    status: Status
    text: str


class InternalTopic(NamedTuple):
    """`replication_factor`: 0 for the default of the cluster."""

    name: str
    partition_count: int
    replication_factor: int
    configs: Sequence[tuple[str, str]]

    @property
    def new_topic(self) -> NewTopic:
        replication_factor = max(self.replication_factor, 0) or -1
        return NewTopic(self.name, self.partition_count, replication_factor, configs=tuple(self.configs))


class ConfiguredSubtopology(NamedTuple):
    task_count: int
    source_topics: Sequence[str]
    repartition_sources: Sequence[InternalTopic]
    repartition_sinks: Sequence[str]
    changelogs: Sequence[InternalTopic]

    @property
    def is_stateful(self) -> bool:
        return bool(self.changelogs)


class ConfiguredTopology(NamedTuple):
    """`subtopologies`: in ascending order of their ids, None if the topics do not fit. `problem`: why tasks cannot be
    assigned."""

    subtopologies: Mapping[str, ConfiguredSubtopology] | None
    missing_topics: Sequence[InternalTopic] = ()
    problem: StatusDetail | None = None


class _Misfit(Exception):
    """The topics that exist do not fit the topology."""

    def __init__(self, status: Status, text: str) -> None:
        super().__init__(text)
        self.detail = StatusDetail(status, text)


def required_topics(subtopologies: Iterable[HeartbeatSubtopology]) -> set[str]:
    """Return the names of all topics that a topology reads: those whose change may change the tasks."""
    names: set[str] = set()
    for each in subtopologies:
        names.update(each.source_topics)
        names.update(topic.name for topic in (*each.repartition_source_topics, *each.state_changelog_topics))
    return names


def configure(subtopologies: Sequence[HeartbeatSubtopology], partition_counts: Mapping[str, int]) -> ConfiguredTopology:
    """Return the configured topology. `partition_counts`: those of the topics that exist, by name.

    Raises KafkaError for a topology that fits no topics.
    """
    by_id = {each.subtopology_id: each for each in subtopologies}
    ordered = [by_id[subtopology_id] for subtopology_id in hash_map_order(by_id)]
    try:
        missing = {name for each in ordered for name in each.source_topics if name not in partition_counts}
        if missing:
            raise _Misfit(Status.MISSING_SOURCE_TOPICS, f"Source topics {_summary(sorted(missing))} are missing.")
        counts = _PartitionCounts(ordered, partition_counts)
        counts.derive_repartition_topics()
        counts.copartition()
        counts.derive_changelogs()
        configured = {id: counts.configured(by_id[id]) for id in paced(sorted(by_id))}
        to_create = _missing_topics(configured.values(), partition_counts)
    except _Misfit as misfit:
        return ConfiguredTopology(None, problem=misfit.detail)
    if not to_create:
        return ConfiguredTopology(configured)
    text = f"Internal topics are missing: {_summary([topic.name for topic in to_create])}"
    return ConfiguredTopology(configured, to_create, StatusDetail(Status.MISSING_INTERNAL_TOPICS, text))


def _summary(names: Sequence[str]) -> str:
    named = ", ".join(names[:MAX_NAMED])
    return f"{named} and {len(names) - MAX_NAMED} additional topics" if len(names) > MAX_NAMED else named


def _missing_topics(
    subtopologies: Iterable[ConfiguredSubtopology], partition_counts: Mapping[str, int]
) -> Sequence[InternalTopic]:
    by_name = {topic.name: topic for each in subtopologies for topic in (*each.repartition_sources, *each.changelogs)}
    internal = [by_name[name] for name in hash_map_order(by_name)]
    for topic in internal:
        found = partition_counts.get(topic.name, topic.partition_count)
        if found != topic.partition_count:
            text = f"Existing topic {topic.name} has different number of partitions: expected {topic.partition_count}"
            raise _Misfit(Status.INCORRECTLY_PARTITIONED_TOPICS, f"{text}, found {found}")
    return [topic for topic in internal if topic.name not in partition_counts]


class _PartitionCounts:
    """The numbers of partitions of the internal topics of a topology, which are decided one after another."""

    def __init__(self, subtopologies: Sequence[HeartbeatSubtopology], existing: Mapping[str, int]) -> None:
        self._subtopologies = subtopologies
        self._existing = existing
        sources = [topic for each in subtopologies for topic in each.repartition_source_topics]
        self._repartition = {topic.name for topic in sources}
        # Those for which the application has set a number.
        self._fixed = {topic.name for topic in sources if topic.partitions}
        self._decided = {topic.name: topic.partitions for topic in sources if topic.partitions}
        # A topic that exists counts as it is, until all of them are compared with what was decided.
        self._counts = ChainMap(dict(existing), self._decided)

    def derive_repartition_topics(self) -> None:
        """Set each topic to the largest known number of the first subtopology that writes to it."""
        is_complete = False
        while not is_complete:
            is_complete, before = True, len(self._decided)
            for each in paced(self._subtopologies):
                for name in each.repartition_sink_topics:
                    if name not in self._decided:
                        count = self._max_input_count(each, self._decided)
                        is_complete = is_complete and count > 0
                        if count:
                            self._decided[name] = count
            if not is_complete and len(self._decided) == before:
                raise _invalid("topics. There may be loops in the topology that cannot be resolved.")
        if not self._decided.keys() >= self._repartition:
            raise _invalid("topics, because a repartition source topic is never used as a sink topic.")

    def _max_input_count(self, subtopology: HeartbeatSubtopology, repartition_counts: Mapping[str, int]) -> int:
        """Return the largest number of partitions of the topics that a subtopology reads, 0 if none is known yet."""
        sources = (self._existing[name] for name in subtopology.source_topics)
        repartition = (repartition_counts.get(topic.name, 0) for topic in subtopology.repartition_source_topics)
        return max((*sources, *repartition), default=0)

    def copartition(self) -> None:
        """Set the topics that are joined to the same number of partitions, as far as that is not fixed."""
        for each in paced(self._subtopologies):
            for group in each.copartition_groups:
                names = {each.source_topics[index] for index in group.source_topics}
                names.update(each.repartition_source_topics[index].name for index in group.repartition_source_topics)
                if names:
                    self._unify(names)

    def _unify(self, names: set[str]) -> None:
        """Set the topics of a group that are not fixed to the number of its source topics.

        Without source topics, all fixed numbers of the topology must be equal, and otherwise the largest one decides.
        """
        counts = {name: self._counts[name] for name in sorted(names)}
        sources = names - self._repartition
        decisive = {self._counts[name] for name in sources or self._fixed} or {max(counts.values())}
        if len(decisive) > 1:
            found = ", ".join(f"{name}={counts[name]}" for name in counts if name in sources or not sources)
            text = f"Following topics do not have the same number of partitions: [{{{found}}}]"
            raise _Misfit(Status.INCORRECTLY_PARTITIONED_TOPICS, text)
        (count,) = decisive
        for name in hash_map_order(names & self._fixed):
            if counts[name] != count:
                text = (
                    f"Number of partitions [{counts[name]}] of repartition topic [{name}] "
                    f"doesn't match number of partitions [{count}] of the source topic."
                )
                raise _Misfit(Status.INCORRECTLY_PARTITIONED_TOPICS, text)
        self._decided.update(dict.fromkeys(names - sources - self._fixed, count))

    def derive_changelogs(self) -> None:
        """Set each changelog to the number of tasks of the last subtopology with it."""
        for each in paced(self._subtopologies):
            task_count = self._max_input_count(each, self._counts)
            if not task_count:
                text = f"No source topics found for subtopology {each.subtopology_id}"
                raise KafkaError(ErrorCode.STREAMS_INVALID_TOPOLOGY, text)
            self._decided.update((topic.name, topic.partitions or task_count) for topic in each.state_changelog_topics)

    def configured(self, subtopology: HeartbeatSubtopology) -> ConfiguredSubtopology:
        return ConfiguredSubtopology(
            self._max_input_count(subtopology, self._counts),
            subtopology.source_topics,
            self._internal_topics(subtopology.repartition_source_topics),
            subtopology.repartition_sink_topics,
            self._internal_topics(subtopology.state_changelog_topics),
        )

    def _internal_topics(self, topics: Iterable[StreamsTopicInfo]) -> Sequence[InternalTopic]:
        by_name = {topic.name: topic for topic in topics}
        return [
            InternalTopic(
                name,
                self._decided[name],
                by_name[name].replication_factor,
                [(config.key, config.value) for config in by_name[name].topic_configs],
            )
            for name in hash_map_order(by_name)
        ]


def _invalid(end: str) -> KafkaError:
    text = f"Failed to compute number of partitions for all repartition {end}"
    return KafkaError(ErrorCode.STREAMS_INVALID_TOPOLOGY, text)
