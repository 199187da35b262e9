"""What a manifest says, and how its commits add up. Pure: no files, no Spark.

Offsets are Kafka's, ranges [start, end). Times are milliseconds since 1970. Sizes are bytes.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

from kbroker.common import TopicPartition
from kbroker.pipeline.errors import PipelineError

FORMAT = "kbroker-archive"
FORMAT_VERSION = 1


class OffsetRange(NamedTuple):
    """The offsets [start, end)."""

    start: int
    end: int


class PartitionStats(NamedTuple):
    """The rows of one partition in one file."""

    partition: int
    first: int  # the lowest offset
    last: int  # the highest offset, itself there
    rows: int
    bytes: int  # of keys and values
    from_ms: int  # the earliest timestamp
    to_ms: int  # the latest
    checksum: int  # schema.CHECKSUM over the rows: unsigned, 64 bits

    def joined(self, other: "PartitionStats") -> "PartitionStats":
        """The rows of both together: counts added, ranges joined, checksums by XOR."""
        return PartitionStats(
            self.partition,
            min(self.first, other.first),
            max(self.last, other.last),
            self.rows + other.rows,
            self.bytes + other.bytes,
            min(self.from_ms, other.from_ms),
            max(self.to_ms, other.to_ms),
            self.checksum ^ other.checksum,
        )


class DataFile(NamedTuple):
    """One committed Parquet file, which holds rows of one topic and one date."""

    path: str  # relative to the archive: topic=T/date=YYYY-MM-DD/NAME.parquet
    topic: str
    date: str  # YYYY-MM-DD of the records' timestamps, in UTC
    size: int
    sha256: str  # of the file as it is on disk
    parts: tuple[PartitionStats, ...]

    @property
    def rows(self) -> int:
        return sum(part.rows for part in self.parts)


class CoveredRange(NamedTuple):
    """A commit has every record of these offsets. Where one has no row there was no record to be had: a
    transaction marker, an aborted record, one that compaction had removed."""

    topic: str
    partition: int
    start: int
    end: int


class Gap(NamedTuple):
    """Offsets that were gone before they could be archived, and why."""

    topic: str
    partition: int
    start: int
    end: int
    reason: str  # "retention": they were below the log's start


class TopicInfo(NamedTuple):
    """A topic as the broker described it when a commit was made."""

    topic_id: str  # the UUID's text; empty where the broker has none
    partitions: int
    configs: Mapping[str, str]  # those that the topic itself sets


# group -> topic -> partition -> committed offset
GroupOffsets = Mapping[str, Mapping[str, Mapping[int, int]]]


@dataclass(frozen=True)
class ManifestCommit:
    """One step of an archive's history; all of it is seen by readers, or nothing."""

    kind: str  # "create", "append", "compact", "observe" (topics and groups alone)
    time_ms: int
    add: tuple[DataFile, ...] = ()
    remove: tuple[str, ...] = ()  # paths
    covered: tuple[CoveredRange, ...] = ()
    gaps: tuple[Gap, ...] = ()
    query: tuple[str, int] | None = None  # the streaming query's id and batch, so that a batch is committed once
    topics: Mapping[str, TopicInfo] | None = None  # where given, it replaces what was known of these topics
    groups: GroupOffsets | None = None  # where given, it replaces what was known
    settings: Mapping[str, Any] | None = None  # of the archive, in the first commit


@dataclass(frozen=True)
class ArchiveState:
    """An archive as of one commit."""

    number: int = -1  # of the latest commit
    time_ms: int = 0
    settings: Mapping[str, Any] = field(default_factory=dict)  # id, format, format_version, committed_only, ...
    files: Mapping[str, DataFile] = field(default_factory=dict)  # by path
    covered: Mapping[TopicPartition, tuple[OffsetRange, ...]] = field(default_factory=dict)  # ascending, merged
    gaps: tuple[Gap, ...] = ()
    queries: Mapping[str, int] = field(default_factory=dict)  # the last batch of each streaming query
    topics: Mapping[str, TopicInfo] = field(default_factory=dict)
    groups: GroupOffsets = field(default_factory=dict)
    groups_ms: int = 0  # when the groups were looked at

    def next_offset(self, partition: TopicPartition) -> int | None:
        """Where the next commit has to go on; None where nothing of the partition is archived yet."""
        spans = self.covered.get(partition)
        return spans[-1].end if spans else None


def apply_commit(state: ArchiveState, number: int, commit: ManifestCommit) -> ArchiveState:
    """The state that commit `number` makes of `state`.

    Raises PipelineError for a commit that does not follow: one that covers offsets twice or removes what is not there.
    """
    return apply_commits(state, [(number, commit)])


def apply_commits(state: ArchiveState, commits: Iterable[tuple[int, ManifestCommit]]) -> ArchiveState:
    """The state that these commits, given with their numbers, make of `state` one after the other. Takes as long as
    the state and the commits are large together. Raises as `after` does.
    """
    files, queries, topics = dict(state.files), dict(state.queries), dict(state.topics)
    covered, gaps = dict(state.covered), list(state.gaps)
    number, time_ms, settings = state.number, state.time_ms, state.settings
    groups, groups_ms = state.groups, state.groups_ms
    for number, commit in commits:
        time_ms = commit.time_ms
        _exchange(files, number, commit)
        _extend(covered, commit.covered)
        gaps += commit.gaps
        topics.update(commit.topics or {})
        if commit.query is not None:
            queries[commit.query[0]] = commit.query[1]
        if commit.settings is not None:
            settings = MappingProxyType(dict(commit.settings))
        if commit.groups is not None:
            groups, groups_ms = commit.groups, commit.time_ms
    return ArchiveState(
        number=number,
        time_ms=time_ms,
        settings=settings,
        files=MappingProxyType(files),
        covered=MappingProxyType(covered),
        gaps=tuple(gaps),
        queries=MappingProxyType(queries),
        topics=MappingProxyType(topics),
        groups=groups,
        groups_ms=groups_ms,
    )


def _exchange(files: dict[str, DataFile], number: int, commit: ManifestCommit) -> None:
    for path in commit.remove:
        if files.pop(path, None) is None:
            raise PipelineError(f"commit {number} removes {path}, which is not in the archive")
    for file in commit.add:
        if file.path in files:
            raise PipelineError(f"commit {number} adds {file.path}, which is in the archive already")
        files[file.path] = file


def _extend(covered: dict[TopicPartition, tuple[OffsetRange, ...]], more: Iterable[CoveredRange]) -> None:
    for topic, partition, start, end in more:
        spans = covered.get(TopicPartition(topic, partition), ())
        if start >= end:
            raise PipelineError(f"{topic}-{partition}: the range [{start}, {end}) covers nothing")
        if spans and start < spans[-1].end:
            raise PipelineError(
                f"{topic}-{partition}: offsets from {start} are archived already, up to {spans[-1].end}"
            )
        if spans and start == spans[-1].end:
            spans, start = spans[:-1], spans[-1].start
        covered[TopicPartition(topic, partition)] = (*spans, OffsetRange(start, end))
