"""Reports what the tables of an archive contain according to their metadata: sums by topic and partition."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import date, timedelta
from typing import NamedTuple

from kbroker.archive.archive import Archive, ArchiveTable
from kbroker.archive.data_files import DataFile
from kbroker.archive.errors import ArchiveError
from kbroker.archive.offset_ranges import OffsetRange, intersect_ranges, merge_ranges, subtract_ranges
from kbroker.archive.topic_state import Gap, TopicState

UNEXPLAINED = "unexplained"  # the reason of a gap that no commit explains
DAY_MS = 86_400_000
MAX_NAMES = 10  # of topics, in an error


@dataclass(frozen=True)
class PartitionReport:
    """One partition. Sizes are bytes, times milliseconds since the epoch; the times are None without rows."""

    partition: int
    covered: tuple[OffsetRange, ...]
    gaps: tuple[Gap, ...]
    files: int
    file_bytes: int
    rows: int
    from_ms: int | None
    to_ms: int | None

    @property
    def offsets(self) -> int:
        """The number of covered offsets."""
        return _count(self.covered)

    @property
    def missing(self) -> int:
        """The number of offsets in gaps."""
        return _count(merge_ranges(map(_range, self.gaps)))

    @property
    def without_record(self) -> int:
        """The number of covered offsets without a record: of transaction markers, aborted and compacted records."""
        deleted = intersect_ranges(self.covered, map(_range, self.gaps))
        return self.offsets - _count(deleted) - self.rows


@dataclass(frozen=True)
class TopicReport:
    """One topic: its state, its files, and the sums of its partitions."""

    topic: str
    state: TopicState
    partitions: tuple[PartitionReport, ...]  # ascending
    dates: tuple[str, ...]
    data_files: tuple[DataFile, ...]  # ascending by partition and offset
    foreign_change: str | None = None  # what another program did to the table
    metadata: str | None = None  # the location of the table's newest metadata file, which other engines can read

    @property
    def rows(self) -> int:
        return sum(partition.rows for partition in self.partitions)

    @property
    def files(self) -> int:
        return len(self.data_files)

    @property
    def file_bytes(self) -> int:
        return sum(file.size for file in self.data_files)

    @property
    def offsets(self) -> int:
        return sum(partition.offsets for partition in self.partitions)

    @property
    def missing(self) -> int:
        return sum(partition.missing for partition in self.partitions)

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


def require_topics(archive: Archive, topics: Collection[str]) -> None:
    """Raise ArchiveError, with the topics that there are, for a topic that is not in the archive."""
    known = archive.topics()
    for topic in topics:
        if topic not in known:
            names = f"{', '.join(known[:MAX_NAMES])}{' ...' if len(known) > MAX_NAMES else ''}"
            contents = f"it has {names}" if known else "it is empty"
            raise ArchiveError(f"{archive.location}: the archive has no topic {topic}; {contents}")


def report_topics(archive: Archive, topics: Collection[str] = ()) -> tuple[TopicReport, ...]:
    """Return the reports of all topics, or of the given ones, sorted by name.

    Reads the metadata of the tables, no data files. Raises ArchiveError if the archive does not have a given topic.
    """
    require_topics(archive, topics)
    return tuple(map(report_table, archive.tables(sorted(topics))))


def report_table(table: ArchiveTable) -> TopicReport:
    """Return the report of the table's state. Raises ArchiveError if its metadata is damaged."""
    report = report_topic(table.topic, table.state, table.files())
    return replace(report, foreign_change=table.foreign_change(), metadata=table.iceberg.metadata_location)


def report_topic(topic: str, state: TopicState, files: Iterable[DataFile]) -> TopicReport:
    """Return the report of a topic with these files (pure)."""
    ordered = tuple(sorted(files, key=lambda file: (file.partition, file.first, file.path)))
    by_partition: dict[int, list[DataFile]] = defaultdict(list)
    for file in ordered:
        by_partition[file.partition].append(file)
    gaps: dict[int, list[Gap]] = defaultdict(list)
    for gap in state.gaps:
        gaps[gap.partition].append(gap)
    numbers = {*state.covered, *gaps, *by_partition, *range(state.topic.partitions if state.topic else 0)}
    return TopicReport(
        topic,
        state,
        tuple(_report_partition(n, state.covered.get(n, ()), by_partition[n], gaps[n]) for n in sorted(numbers)),
        tuple(sorted({_date(file.from_ms) for file in ordered})),
        ordered,
    )


def archive_totals(reports: Collection[TopicReport]) -> ArchiveTotals:
    return ArchiveTotals(
        len(reports),
        sum(report.rows for report in reports),
        sum(report.files for report in reports),
        sum(report.file_bytes for report in reports),
    )


def _report_partition(
    partition: int, covered: Sequence[OffsetRange], files: Sequence[DataFile], explained: Sequence[Gap]
) -> PartitionReport:
    unexplained = [Gap(partition, *hole, UNEXPLAINED) for hole in _find_holes(covered, explained)]
    return PartitionReport(
        partition,
        tuple(covered),
        tuple(sorted({*explained, *unexplained}, key=_range)),
        len(files),
        sum(file.size for file in files),
        sum(file.rows for file in files),
        min((file.from_ms for file in files), default=None),
        max((file.to_ms for file in files), default=None),
    )


def _find_holes(covered: Sequence[OffsetRange], gaps: Sequence[Gap]) -> tuple[OffsetRange, ...]:
    """Return the offsets between the first and the last known one that are neither covered nor in a gap."""
    if not covered:
        return ()
    known = [*covered, *map(_range, gaps)]
    return subtract_ranges([OffsetRange(covered[0].start, max(end for _, end in known))], known)


def _range(gap: Gap) -> OffsetRange:
    return OffsetRange(gap.start, gap.end)


def _count(ranges: Iterable[OffsetRange]) -> int:
    return sum(end - start for start, end in ranges)


def _date(time_ms: int) -> str:
    return str(date(1970, 1, 1) + timedelta(days=time_ms // DAY_MS))
