"""Reports what an archive contains according to its manifest: sums by topic and partition (pure)."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from kbroker.common import TopicPartition
from kbroker.pipeline.archive.layout import OffsetRange, subtract_ranges
from kbroker.pipeline.archive.manifest import ArchiveState, DataFile, Gap, PartitionStats, TopicInfo
from kbroker.pipeline.errors import PipelineError

UNEXPLAINED = "unexplained"  # the reason of a gap that no commit explains


@dataclass(frozen=True)
class PartitionReport:
    """One partition. Sizes are bytes, times milliseconds since the epoch; the times are None without rows."""

    partition: int
    covered: tuple[OffsetRange, ...]
    gaps: tuple[Gap, ...]
    files: int  # with rows of the partition; a compacted file may have rows of several
    rows: int
    bytes: int  # of keys and values
    from_ms: int | None
    to_ms: int | None

    @property
    def offsets(self) -> int:
        """The number of covered offsets."""
        return sum(end - start for start, end in self.covered)

    @property
    def without_record(self) -> int:
        """The number of covered offsets without a record: of transaction markers, aborted and compacted records."""
        return self.offsets - self.rows

    @property
    def lost(self) -> int:
        """The number of offsets that were deleted before they could be archived."""
        return sum(gap.end - gap.start for gap in self.gaps)


@dataclass(frozen=True)
class TopicReport:
    """One topic: its files, and the sums of its partitions."""

    topic: str
    info: TopicInfo | None  # None if no commit contains it
    partitions: tuple[PartitionReport, ...]  # ascending
    dates: tuple[str, ...]
    files: int
    file_bytes: int

    @property
    def rows(self) -> int:
        return sum(partition.rows for partition in self.partitions)

    @property
    def bytes(self) -> int:
        """Bytes of keys and values."""
        return sum(partition.bytes for partition in self.partitions)

    @property
    def offsets(self) -> int:
        return sum(partition.offsets for partition in self.partitions)

    @property
    def without_record(self) -> int:
        return sum(partition.without_record for partition in self.partitions)

    @property
    def gaps(self) -> tuple[Gap, ...]:
        return tuple(gap for partition in self.partitions for gap in partition.gaps)

    @property
    def from_ms(self) -> int | None:
        return min((partition.from_ms for partition in self.partitions if partition.from_ms is not None), default=None)

    @property
    def to_ms(self) -> int | None:
        return max((partition.to_ms for partition in self.partitions if partition.to_ms is not None), default=None)


class ArchiveTotals(NamedTuple):
    """The sums of several topics."""

    topics: int
    rows: int
    files: int
    file_bytes: int


def report_topics(state: ArchiveState, topics: Collection[str] = ()) -> tuple[TopicReport, ...]:
    """Return the reports of all topics, or of the given ones, sorted by name.

    Raises PipelineError if the archive does not know a given topic.
    """
    files: dict[str, list[DataFile]] = defaultdict(list)
    for file in state.files.values():
        files[file.topic].append(file)
    partitions: dict[str, set[int]] = defaultdict(set)
    for topic, partition in (*state.covered, *((gap.topic, gap.partition) for gap in state.gaps)):
        partitions[topic].add(partition)
    known = sorted({*files, *partitions, *state.topics})
    for missing in sorted(set(topics) - set(known)):
        raise PipelineError(f"topic {missing} is not in the archive{_list_known(known)}")
    return tuple(
        _report_topic(state, name, files[name], partitions[name]) for name in known if not topics or name in topics
    )


def archive_totals(reports: Collection[TopicReport]) -> ArchiveTotals:
    return ArchiveTotals(
        len(reports),
        sum(report.rows for report in reports),
        sum(report.files for report in reports),
        sum(report.file_bytes for report in reports),
    )


def _list_known(topics: list[str]) -> str:
    return f"; it has {', '.join(topics[:10])}{' ...' if len(topics) > 10 else ''}" if topics else ", which is empty"


def _report_topic(
    state: ArchiveState, topic: str, files: Collection[DataFile], partitions: Iterable[int]
) -> TopicReport:
    stats: dict[int, list[PartitionStats]] = defaultdict(list)
    for file in files:
        for part in file.partitions:
            stats[part.partition].append(part)
    gaps: dict[int, list[Gap]] = defaultdict(list)
    for gap in state.gaps:
        if gap.topic == topic:
            gaps[gap.partition].append(gap)
    info = state.topics.get(topic)
    numbers = sorted({*partitions, *stats, *range(info.partitions if info else 0)})
    return TopicReport(
        topic,
        info,
        tuple(_report_partition(state, TopicPartition(topic, n), stats[n], gaps[n]) for n in numbers),
        tuple(sorted({file.date for file in files})),
        len(files),
        sum(file.size for file in files),
    )


def _report_partition(
    state: ArchiveState, tp: TopicPartition, stats: Collection[PartitionStats], gaps: Iterable[Gap]
) -> PartitionReport:
    covered = tuple(state.covered.get(tp, ()))
    explained = set(gaps)
    unexplained = [Gap(*tp, *hole, UNEXPLAINED) for hole in _find_holes(covered, explained)]
    return PartitionReport(
        tp.partition,
        covered,
        tuple(sorted([*explained, *unexplained], key=lambda gap: (gap.start, gap.end))),
        len(stats),
        sum(part.rows for part in stats),
        sum(part.bytes for part in stats),
        min((part.from_ms for part in stats), default=None),
        max((part.to_ms for part in stats), default=None),
    )


def _find_holes(covered: Sequence[OffsetRange], gaps: Iterable[Gap]) -> tuple[OffsetRange, ...]:
    """Return the offsets between the first and the last known one that are neither covered nor in a gap."""
    if not covered:
        return ()
    known = [*covered, *(OffsetRange(gap.start, gap.end) for gap in gaps)]
    return subtract_ranges([OffsetRange(covered[0].start, max(end for _, end in known))], known)
