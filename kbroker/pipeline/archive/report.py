"""What an archive holds, told from its manifest alone: neither Spark nor the files are asked."""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from kbroker.common import TopicPartition
from kbroker.pipeline import plot
from kbroker.pipeline.archive.manifest.model import ArchiveState, DataFile, Gap, OffsetRange, PartitionStats, TopicInfo
from kbroker.pipeline.errors import PipelineError

UNEXPLAINED = "unexplained"  # between two covered ranges, and no commit says why


@dataclass(frozen=True)
class PartitionReport:
    """One partition. Sizes are bytes, times milliseconds since 1970; the times are None where there are no rows."""

    partition: int
    covered: tuple[OffsetRange, ...]
    gaps: tuple[Gap, ...]
    files: int  # that hold rows of it; a compacted file may hold several partitions
    rows: int
    bytes: int  # of keys and values
    from_ms: int | None
    to_ms: int | None

    @property
    def offsets(self) -> int:
        """How many are covered."""
        return sum(span.end - span.start for span in self.covered)

    @property
    def without_record(self) -> int:
        """Covered offsets that had no record: transaction markers, aborted records, what compaction removed."""
        return self.offsets - self.rows

    @property
    def lost(self) -> int:
        """Offsets that were gone before they could be archived."""
        return sum(gap.end - gap.start for gap in self.gaps)


@dataclass(frozen=True)
class TopicReport:
    """One topic: its files, and the sums over its partitions."""

    topic: str
    info: TopicInfo | None  # None where no commit says what the broker told of it
    partitions: tuple[PartitionReport, ...]  # ascending
    dates: tuple[str, ...]
    files: int
    size: int  # bytes of the files

    @property
    def rows(self) -> int:
        return sum(one.rows for one in self.partitions)

    @property
    def bytes(self) -> int:
        """Of keys and values."""
        return sum(one.bytes for one in self.partitions)

    @property
    def offsets(self) -> int:
        return sum(one.offsets for one in self.partitions)

    @property
    def without_record(self) -> int:
        return sum(one.without_record for one in self.partitions)

    @property
    def gaps(self) -> tuple[Gap, ...]:
        return tuple(gap for one in self.partitions for gap in one.gaps)

    @property
    def from_ms(self) -> int | None:
        return min((one.from_ms for one in self.partitions if one.from_ms is not None), default=None)

    @property
    def to_ms(self) -> int | None:
        return max((one.to_ms for one in self.partitions if one.to_ms is not None), default=None)


def topics(state: ArchiveState, wanted: Collection[str] = ()) -> tuple[TopicReport, ...]:
    """A report of each topic, by name; only of those that are wanted, if any are named.

    Raises PipelineError for a wanted topic that the archive knows nothing of.
    """
    files: dict[str, list[DataFile]] = defaultdict(list)
    for file in state.files.values():
        files[file.topic].append(file)
    partitions: dict[str, set[int]] = defaultdict(set)
    for topic, number in (*state.covered, *((gap.topic, gap.partition) for gap in state.gaps)):
        partitions[topic].add(number)
    known = sorted({*files, *partitions, *state.topics})
    for absent in sorted(set(wanted) - set(known)):
        raise PipelineError(f"topic {absent} is not in the archive{_instead(known)}")
    return tuple(_topic(state, name, files[name], partitions[name]) for name in known if not wanted or name in wanted)


def _instead(known: Iterable[str]) -> str:
    names = list(known)
    return f"; there are {', '.join(names[:10])}{' ...' if len(names) > 10 else ''}" if names else ", which is empty"


def _topic(state: ArchiveState, topic: str, files: Collection[DataFile], numbers: Collection[int]) -> TopicReport:
    parts: dict[int, list[PartitionStats]] = defaultdict(list)
    for file in files:
        for part in file.parts:
            parts[part.partition].append(part)
    info = state.topics.get(topic)
    everyone = sorted({*numbers, *parts, *range(info.partitions if info else 0)})
    gaps: dict[int, list[Gap]] = defaultdict(list)
    for gap in state.gaps:
        if gap.topic == topic:
            gaps[gap.partition].append(gap)
    return TopicReport(
        topic,
        info,
        tuple(_partition(state, TopicPartition(topic, number), parts[number], gaps[number]) for number in everyone),
        tuple(sorted({file.date for file in files})),
        len(files),
        sum(file.size for file in files),
    )


def _partition(
    state: ArchiveState, partition: TopicPartition, parts: Collection[PartitionStats], gaps: Iterable[Gap]
) -> PartitionReport:
    covered = tuple(state.covered.get(partition, ()))
    told = sorted(set(gaps), key=lambda gap: (gap.start, gap.end))
    silent = (Gap(*partition, *hole, UNEXPLAINED) for hole in _unexplained(covered, told))
    return PartitionReport(
        partition.partition,
        covered,
        tuple(sorted((*told, *silent), key=lambda gap: (gap.start, gap.end))),
        len(parts),
        sum(part.rows for part in parts),
        sum(part.bytes for part in parts),
        min((part.from_ms for part in parts), default=None),
        max((part.to_ms for part in parts), default=None),
    )


def _unexplained(covered: Collection[OffsetRange], gaps: Iterable[Gap]) -> Iterator[OffsetRange]:
    """What lies between covered ranges and in none of the gaps, which are ascending."""
    if not covered:
        return
    known = sorted([*covered, *(OffsetRange(gap.start, gap.end) for gap in gaps)])
    reached = min(span.start for span in covered)
    for start, end in known:
        if start > reached:
            yield OffsetRange(reached, start)
        reached = max(reached, end)


class Summary(NamedTuple):
    """An archive in one line."""

    topics: int
    partitions: int
    rows: int
    size: int  # bytes of the files
    files: int
    from_ms: int | None
    to_ms: int | None


def summary(reports: Collection[TopicReport]) -> Summary:
    return Summary(
        len(reports),
        sum(len(one.partitions) for one in reports),
        sum(one.rows for one in reports),
        sum(one.size for one in reports),
        sum(one.files for one in reports),
        min((one.from_ms for one in reports if one.from_ms is not None), default=None),
        max((one.to_ms for one in reports if one.to_ms is not None), default=None),
    )


def topic_json(report: TopicReport, with_partitions: bool = True) -> dict[str, Any]:
    """A report for programs."""
    result: dict[str, Any] = {
        "topic": report.topic,
        "topic_id": (report.info and report.info.topic_id) or None,
        "configs": dict(report.info.configs) if report.info else None,
        "rows": report.rows,
        "bytes": report.bytes,
        "file_bytes": report.size,
        "files": report.files,
        "dates": list(report.dates),
        "offsets": report.offsets,
        "offsets_without_record": report.without_record,
        "gaps": [gap._asdict() for gap in report.gaps],
        "from_ms": report.from_ms,
        "to_ms": report.to_ms,
    }
    if with_partitions:
        result["partitions"] = [_partition_json(one) for one in report.partitions]
    else:
        result["partitions"] = len(report.partitions)
    return result


def _partition_json(report: PartitionReport) -> dict[str, Any]:
    return {
        "partition": report.partition,
        "covered": [list(span) for span in report.covered],
        "rows": report.rows,
        "bytes": report.bytes,
        "files": report.files,
        "offsets": report.offsets,
        "offsets_without_record": report.without_record,
        "gaps": [{"start": gap.start, "end": gap.end, "reason": gap.reason} for gap in report.gaps],
        "from_ms": report.from_ms,
        "to_ms": report.to_ms,
    }


def draw(state: ArchiveState, path: str, title: str, wanted: Collection[str] = ()) -> None:
    """Writes the PNG of records and bytes over time, by topic. Raises PipelineError, as plot.over_time does.

    A file's rows are spread evenly over the time that they span: that is all the manifest says of them.
    """
    plot.require(path)
    parts = {topic: found for topic, found in _parts(state).items() if not wanted or topic in wanted}
    timed = {topic: [part for part in found if part.from_ms >= 0] for topic, found in parts.items()}
    every = [part for found in timed.values() for part in found]
    if not every:
        raise PipelineError(f"{path}: there is nothing to plot, for the archive has no rows with a time")
    one = plot.step(min(part.from_ms for part in every), max(part.to_ms for part in every))

    def over_time(amount: Callable[[PartitionStats], int]) -> dict[str, plot.Points]:
        return {
            topic: plot.spread((plot.Piece(part.from_ms, part.to_ms, amount(part)) for part in found), one.ms)
            for topic, found in timed.items()
        }

    rows, data = over_time(lambda part: part.rows), over_time(lambda part: part.bytes)
    untimed = sum(part.rows for found in parts.values() for part in found) - sum(part.rows for part in every)
    plot.over_time(
        path,
        title,
        plot.largest(rows),
        f"records per {one.text}",
        lower=plot.largest(data, by=rows),
        lower_unit=f"bytes per {one.text}",
        width_ms=one.ms,
        note=_note(untimed),
    )


def _note(untimed: int) -> str:
    left_out = f" Left out: files with {untimed} rows that have no time." if untimed else ""
    return f"Bytes of keys and values. The rows of a file are spread evenly over the time that they span.{left_out}"


def _parts(state: ArchiveState) -> Mapping[str, list[PartitionStats]]:
    parts: dict[str, list[PartitionStats]] = defaultdict(list)
    for file in state.files.values():
        parts[file.topic] += file.parts
    return parts
