"""What has to hold between a manifest, its files and a broker, decided from numbers. Pure: no files, no Spark."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from kbroker.common import TopicPartition
from kbroker.pipeline.archive.manifest.model import ArchiveState, DataFile, OffsetRange, PartitionStats
from kbroker.pipeline.archive.verification.findings import Finding, common, difference, merged, minus

DAY_MS = 86_400_000


@dataclass(frozen=True)
class Scope:
    """What is to be verified; everything where nothing is said."""

    topics: frozenset[str] = frozenset()
    dates: frozenset[str] = frozenset()
    offsets: OffsetRange | None = None
    times: OffsetRange | None = None  # of the records, milliseconds since 1970

    def has_topic(self, topic: str) -> bool:
        return not self.topics or topic in self.topics

    def has_file(self, file: DataFile) -> bool:
        """Whether rows of it may be wanted."""
        if not self.has_topic(file.topic) or (self.dates and file.date not in self.dates):
            return False
        return any(self._has_part(part) for part in file.parts)

    def _has_part(self, part: PartitionStats) -> bool:
        if self.offsets is not None and (part.last < self.offsets.start or part.first >= self.offsets.end):
            return False
        return self.times is None or (part.to_ms >= self.times.start and part.from_ms < self.times.end)

    def spans(self, spans: Iterable[OffsetRange]) -> tuple[OffsetRange, ...]:
        """What is wanted of these offsets."""
        return merged(spans) if self.offsets is None else common(spans, [self.offsets])


class Measured(NamedTuple):
    """What was counted of the rows of one partition in one file whose offsets are in one bucket."""

    file: str
    partition: int
    bucket: int  # offset // the bucket's size
    is_compared: bool  # with the broker; rows of one bucket may be divided by it
    first: int
    last: int
    rows: int
    bytes: int
    from_ms: int
    to_ms: int
    checksum: int  # unsigned
    misdated: int  # rows whose timestamp's date is not the directory's


class Sum(NamedTuple):
    """Rows of one partition in one bucket, from all files or from the broker."""

    rows: int
    checksum: int


def layout(state: ArchiveState, scope: Scope) -> Iterator[Finding]:
    """What the manifest says against itself: paths, dates, offsets, holes."""
    for file in state.files.values():
        if not scope.has_file(file):
            continue
        if not file.path.startswith(f"topic={file.topic}/date={file.date}/"):
            yield difference("layout", f"is said to hold {file.topic} of {file.date}", file=file.path)
        for part in file.parts:
            yield from _part(file, part, state.covered.get(TopicPartition(file.topic, part.partition), ()))
    for at, spans in sorted(state.covered.items()):
        if scope.has_topic(at.topic):
            yield from _holes(at, spans, state)


def _part(file: DataFile, part: PartitionStats, covered: tuple[OffsetRange, ...]) -> Iterator[Finding]:
    at = TopicPartition(file.topic, part.partition)
    span = OffsetRange(part.first, part.last + 1)
    if not 0 < part.rows <= span.end - span.start:
        yield difference("layout", f"is said to have {part.rows} rows", at, file.path, [span])
    outside = minus([span], covered)
    if outside and part.rows > (span.end - span.start) - sum(end - start for start, end in outside):
        yield difference("layout", "is said to have rows that no commit covers", at, file.path, outside)


def _holes(at: TopicPartition, spans: Sequence[OffsetRange], state: ArchiveState) -> Iterator[Finding]:
    between = [OffsetRange(one.end, other.start) for one, other in pairwise(spans)]
    gaps = [OffsetRange(gap.start, gap.end) for gap in state.gaps if (gap.topic, gap.partition) == at]
    holes = minus(between, gaps)
    if holes:
        yield difference("hole", "no commit covers them, and no gap tells why", at, offsets=holes)


def parts(measured: Iterable[Measured]) -> dict[str, tuple[PartitionStats, ...]]:
    """By file: its parts as they were counted."""
    found: dict[tuple[str, int], PartitionStats] = {}
    for one in measured:
        key = (one.file, one.partition)
        part = PartitionStats(
            one.partition, one.first, one.last, one.rows, one.bytes, one.from_ms, one.to_ms, one.checksum
        )
        found[key] = found[key].joined(part) if key in found else part
    by_file: dict[str, list[PartitionStats]] = defaultdict(list)
    for (file, _), part in sorted(found.items()):
        by_file[file].append(part)
    return {file: tuple(listed) for file, listed in by_file.items()}


def rows(file: DataFile, found: Sequence[PartitionStats]) -> Iterator[Finding]:
    """The rows of a file against what was committed of them."""
    committed = {part.partition: part for part in file.parts}
    counted = {part.partition: part for part in found}
    for number in sorted(committed.keys() | counted.keys()):
        at = TopicPartition(file.topic, number)
        was, now = committed.get(number), counted.get(number)
        if was is None and now is not None:
            span = OffsetRange(now.first, now.last + 1)
            yield difference(
                "rows", f"{now.rows} rows of a partition that was not committed with it", at, file.path, [span]
            )
        elif was is not None and now is None:
            span = OffsetRange(was.first, was.last + 1)
            yield difference("rows", f"none of the {was.rows} rows that were committed", at, file.path, [span])
        elif was is not None and now is not None and was != now:
            span = OffsetRange(min(was.first, now.first), max(was.last, now.last) + 1)
            yield difference("rows", "; ".join(_changes(was, now)), at, file.path, [span])


def _changes(was: PartitionStats, now: PartitionStats) -> Iterator[str]:
    if was.rows != now.rows:
        yield f"{now.rows} rows instead of {was.rows}"
    if (was.first, was.last) != (now.first, now.last):
        yield f"offsets {now.first} to {now.last} instead of {was.first} to {was.last}"
    if was.bytes != now.bytes:
        yield f"{now.bytes} bytes of keys and values instead of {was.bytes}"
    if (was.from_ms, was.to_ms) != (now.from_ms, now.to_ms):
        yield f"times {now.from_ms} to {now.to_ms} instead of {was.from_ms} to {was.to_ms}"
    if was.checksum != now.checksum:
        yield f"checksum {now.checksum:016x} instead of {was.checksum:016x}"


def suspicious(measured: Iterable[Measured], state: ArchiveState) -> list[Measured]:
    """Those that may have rows which no commit covers: the offsets themselves have to be looked at."""
    return [one for one in measured if not _is_covered(one, state)]


def _is_covered(one: Measured, state: ArchiveState) -> bool:
    covered = state.covered.get(TopicPartition(state.files[one.file].topic, one.partition), ())
    return any(start <= one.first and one.last < end for start, end in covered)


def misdated(measured: Iterable[Measured], state: ArchiveState) -> Iterator[Finding]:
    """Files with rows of other dates than their directory's."""
    found: dict[tuple[str, int], list[Measured]] = defaultdict(list)
    for one in measured:
        if one.misdated:
            found[one.file, one.partition].append(one)
    for (path, number), listed in sorted(found.items()):
        file = state.files[path]
        number_of = sum(one.misdated for one in listed)
        what = f"{number_of} row{'s are' if number_of > 1 else ' is'} not of {file.date} (UTC), among"
        spans = merged(OffsetRange(one.first, one.last + 1) for one in listed)
        yield difference("date", what, TopicPartition(file.topic, number), path, spans)


def lost(part: PartitionStats, held: Iterable[OffsetRange]) -> tuple[OffsetRange, ...]:
    """The offsets that a part must have had and does not have: known where every offset of it had a row."""
    if part.rows != part.last - part.first + 1:
        return ()
    return minus([OffsetRange(part.first, part.last + 1)], held)


def sums(measured: Iterable[Measured], files: Mapping[str, DataFile]) -> dict[tuple[TopicPartition, int], Sum]:
    """By partition and bucket, of the rows that are compared with the broker."""
    found: dict[tuple[TopicPartition, int], Sum] = {}
    for one in measured:
        if one.is_compared:
            key = (TopicPartition(files[one.file].topic, one.partition), one.bucket)
            before = found.get(key, Sum(0, 0))
            found[key] = Sum(before.rows + one.rows, before.checksum ^ one.checksum)
    return found


def unequal(
    archive: Mapping[tuple[TopicPartition, int], Sum], broker: Mapping[tuple[TopicPartition, int], Sum]
) -> dict[TopicPartition, list[int]]:
    """The buckets that are not the same on both sides, ascending."""
    found: dict[TopicPartition, list[int]] = defaultdict(list)
    for key in sorted(archive.keys() | broker.keys()):
        if archive.get(key, Sum(0, 0)) != broker.get(key, Sum(0, 0)):
            found[key[0]].append(key[1])
    return dict(found)


def comparable(
    state: ArchiveState, scope: Scope, starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
) -> dict[TopicPartition, tuple[OffsetRange, ...]]:
    """The offsets that the archive covers and the broker still has, [start, end) of its log by partition."""
    found = {}
    for at, spans in sorted(state.covered.items()):
        if scope.has_topic(at.topic) and at in starts and at in ends:
            both = common(scope.spans(spans), [OffsetRange(starts[at], ends[at])])
            if both:
                found[at] = both
    return found
