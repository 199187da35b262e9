"""The content of a manifest: commits, and the archive state that results from applying them (pure).

Offset ranges are [start, end). Times are milliseconds since the epoch. Sizes are bytes.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

from kbroker.common import TopicPartition
from kbroker.pipeline.archive.layout import OffsetRange
from kbroker.pipeline.errors import PipelineError

FORMAT = "kbroker-archive"
FORMAT_VERSION = 1


class PartitionStats(NamedTuple):
    """Statistics of one partition's rows in one data file."""

    partition: int
    first: int  # the lowest offset
    last: int  # the highest offset, inclusive
    rows: int
    bytes: int  # of keys and values
    from_ms: int  # the lowest timestamp
    to_ms: int  # the highest timestamp
    checksum: int  # schema.CHECKSUM of the rows: unsigned, 64 bits

    def merge(self, other: "PartitionStats") -> "PartitionStats":
        """Return the statistics of the rows of both."""
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
    """A committed Parquet file with rows of one topic and one date."""

    path: str  # relative to the archive: topic=T/date=YYYY-MM-DD/NAME.parquet
    topic: str
    date: str  # YYYY-MM-DD of the record timestamps, in UTC
    size: int
    sha256: str  # of the file's bytes
    partitions: tuple[PartitionStats, ...]

    @property
    def rows(self) -> int:
        return sum(stats.rows for stats in self.partitions)


class CoveredRange(NamedTuple):
    """Offsets whose records are all archived by a commit.

    An offset without a row had no record to archive: it was a transaction marker, an aborted record, or a record that
    log compaction had removed.
    """

    topic: str
    partition: int
    start: int
    end: int


class Gap(NamedTuple):
    """Offsets that were deleted from the log before they could be archived."""

    topic: str
    partition: int
    start: int
    end: int
    reason: str  # "retention": they were below the log start offset


class TopicInfo(NamedTuple):
    """A topic as the broker described it at the time of a commit."""

    topic_id: str  # the UUID in Kafka's text form; empty if the broker has none
    partitions: int
    configs: Mapping[str, str]  # those set on the topic itself


# group -> topic -> partition -> committed offset
GroupOffsets = Mapping[str, Mapping[str, Mapping[int, int]]]


@dataclass(frozen=True)
class ManifestCommit:
    """One atomic change of an archive."""

    kind: str  # "create", "append", "compact", "observe" (only topics and groups)
    time_ms: int
    add: tuple[DataFile, ...] = ()
    remove: tuple[str, ...] = ()  # paths of data files
    covered: tuple[CoveredRange, ...] = ()
    gaps: tuple[Gap, ...] = ()
    query: tuple[str, int] | None = None  # id and batch of the streaming query: each batch is committed once
    topics: Mapping[str, TopicInfo] | None = None  # replaces the previous information on these topics
    groups: GroupOffsets | None = None  # replaces all previous group offsets
    settings: Mapping[str, Any] | None = None  # of the archive; in the first commit


@dataclass(frozen=True)
class ArchiveState:
    """The content of an archive after a commit."""

    commit_number: int = -1  # of the latest commit
    time_ms: int = 0
    settings: Mapping[str, Any] = field(default_factory=dict)  # id, format, format_version, committed_only, ...
    files: Mapping[str, DataFile] = field(default_factory=dict)  # by path
    covered: Mapping[TopicPartition, tuple[OffsetRange, ...]] = field(default_factory=dict)  # ascending, merged
    gaps: tuple[Gap, ...] = ()
    last_batches: Mapping[str, int] = field(default_factory=dict)  # by streaming query id
    topics: Mapping[str, TopicInfo] = field(default_factory=dict)
    groups: GroupOffsets = field(default_factory=dict)
    groups_ms: int = 0  # when the group offsets were read


def apply_commit(state: ArchiveState, number: int, commit: ManifestCommit) -> ArchiveState:
    """Return the state after commit `number`.

    Raises PipelineError if the commit contradicts the state: it covers offsets again, or removes an unknown file.
    """
    return apply_commits(state, [(number, commit)])


def apply_commits(state: ArchiveState, commits: Iterable[tuple[int, ManifestCommit]]) -> ArchiveState:
    """Return the state after several commits with their numbers. Raises the errors of `apply_commit`.

    The state is copied once, so that the time is linear in the size of the state and the commits.
    """
    files, last_batches, topics = dict(state.files), dict(state.last_batches), dict(state.topics)
    covered, gaps = dict(state.covered), list(state.gaps)
    number, time_ms, settings = state.commit_number, state.time_ms, state.settings
    groups, groups_ms = state.groups, state.groups_ms
    for number, commit in commits:
        time_ms = commit.time_ms
        _replace_files(files, number, commit)
        _add_covered(covered, commit.covered)
        gaps += commit.gaps
        topics.update(commit.topics or {})
        if commit.query is not None:
            query_id, batch = commit.query
            last_batches[query_id] = batch
        if commit.settings is not None:
            settings = MappingProxyType(dict(commit.settings))
        if commit.groups is not None:
            groups, groups_ms = commit.groups, commit.time_ms
    return ArchiveState(
        commit_number=number,
        time_ms=time_ms,
        settings=settings,
        files=MappingProxyType(files),
        covered=MappingProxyType(covered),
        gaps=tuple(gaps),
        last_batches=MappingProxyType(last_batches),
        topics=MappingProxyType(topics),
        groups=groups,
        groups_ms=groups_ms,
    )


def _replace_files(files: dict[str, DataFile], number: int, commit: ManifestCommit) -> None:
    for path in commit.remove:
        if files.pop(path, None) is None:
            raise PipelineError(f"commit {number} removes {path}, which is not in the archive")
    for file in commit.add:
        if file.path in files:
            raise PipelineError(f"commit {number} adds {file.path}, which is already in the archive")
        files[file.path] = file


def _add_covered(covered: dict[TopicPartition, tuple[OffsetRange, ...]], added: Iterable[CoveredRange]) -> None:
    for topic, partition, start, end in added:
        tp = TopicPartition(topic, partition)
        ranges = covered.get(tp, ())
        if start >= end:
            raise PipelineError(f"{tp}: the covered range [{start}, {end}) is empty")
        if ranges and start < ranges[-1].end:
            raise PipelineError(f"{tp}: offsets from {start} are already archived, up to {ranges[-1].end}")
        if ranges and start == ranges[-1].end:
            ranges, start = ranges[:-1], ranges[-1].start
        covered[tp] = (*ranges, OffsetRange(start, end))
