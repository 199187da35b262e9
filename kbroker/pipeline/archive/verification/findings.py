"""What a verification covers, finds and reports, and its checks of statistics (pure)."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

from kbroker.common import TopicPartition
from kbroker.pipeline.archive import schema
from kbroker.pipeline.archive.layout import OffsetRange, intersect_ranges, merge_ranges, subtract_ranges
from kbroker.pipeline.archive.manifest import ArchiveState, DataFile, PartitionStats


@dataclass(frozen=True)
class VerificationScope:
    """Selects what is verified; by default everything."""

    topics: frozenset[str] = frozenset()
    dates: frozenset[str] = frozenset()  # YYYY-MM-DD
    offsets: OffsetRange | None = None
    times_ms: tuple[int, int] | None = None  # timestamps of the records: [start, end)

    def has_topic(self, topic: str) -> bool:
        return not self.topics or topic in self.topics

    def has_file(self, file: DataFile) -> bool:
        """Return whether the file may have rows in the scope."""
        if not self.has_topic(file.topic) or (self.dates and file.date not in self.dates):
            return False
        return any(map(self._has_partition, file.partitions))

    def _has_partition(self, stats: PartitionStats) -> bool:
        if self.offsets is not None and (stats.last < self.offsets.start or stats.first >= self.offsets.end):
            return False
        return self.times_ms is None or (stats.to_ms >= self.times_ms[0] and stats.from_ms < self.times_ms[1])

    def limit(self, ranges: Iterable[OffsetRange]) -> tuple[OffsetRange, ...]:
        """Return the part of offset ranges that is in the scope."""
        return merge_ranges(ranges) if self.offsets is None else intersect_ranges(ranges, [self.offsets])

    def timestamp_condition(self) -> str:
        """Return the SQL condition that a row's timestamp is in the scope."""
        conditions = ["true"]
        if self.times_ms is not None:
            start, end = self.times_ms
            conditions.append(f"unix_millis(timestamp) >= {start} AND unix_millis(timestamp) < {end}")
        if self.dates:
            dates = ", ".join(f"DATE'{date}'" for date in sorted(self.dates))
            conditions.append(f"{schema.DATE} IN ({dates})")
        return " AND ".join(conditions)


# Ranges in the text of one finding; the JSON report contains all.
MAX_PRINTED_RANGES = 10

# Every kind of difference. A finding of another kind is a note.
DIFFERENCES = {
    "manifest": "a commit or state file is missing, cannot be read, or does not continue the one before it",
    "layout": "the path, date or offsets of a committed file contradict the manifest",
    "hole": "offsets between archived ones that are not archived, without a gap that explains why",
    "missing file": "a committed file does not exist",
    "changed file": "its bytes are not those that were committed",
    "unreadable file": "Spark cannot read it",
    "columns": "its columns are not those of an archive's files",
    "rows": "its rows are not those that were committed",
    "doubled": "a record that is in the archive more than once",
    "uncovered": "a row at an offset that no commit covers",
    "date": "a row in a directory whose date is not that of its timestamp",
    "foreign file": "a file or directory that readers see and no commit contains",
    "view": "Spark's metadata does not list the files of the manifest",
    "missing record": "at the broker, but not in the archive",
    "unknown record": "in the archive, but not at the broker, although its log has the offset",
    "different record": "not the same in the archive and at the broker",
    "not compared": "the topic does not exist at the broker, or was created again",
}


class Finding(NamedTuple):
    """A difference, or a note that explains what was not compared."""

    kind: str
    text: str
    topic: str = ""
    partition: int | None = None
    file: str = ""  # relative to the archive
    offsets: tuple[OffsetRange, ...] = ()
    is_difference: bool = True

    def as_json(self) -> dict[str, Any]:
        fields = self._asdict()
        return {"kind": fields.pop("kind"), "what": fields.pop("text"), **fields}


class PartitionComparison(NamedTuple):
    """The part of one partition that was compared with the broker."""

    topic: str
    partition: int
    spans: tuple[OffsetRange, ...]
    archive_rows: int
    broker_rows: int
    equal: bool

    def as_json(self) -> dict[str, Any]:
        rows = {"archive_rows": self.archive_rows, "broker_rows": self.broker_rows}
        return {"topic": self.topic, "partition": self.partition, "spans": self.spans, **rows, "equal": self.equal}


@dataclass
class VerificationReport:
    """The results of one verification."""

    archive: str
    bootstrap: str  # empty without a broker
    commit_number: int = -1
    started_ms: int = 0
    seconds: float = 0.0
    files: int = 0
    bytes: int = 0
    rows: int = 0
    compared: list[PartitionComparison] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)

    @property
    def differences(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.is_difference]

    @property
    def notes(self) -> list[Finding]:
        return [finding for finding in self.findings if not finding.is_difference]

    @property
    def records_compared(self) -> int:
        return sum(comparison.broker_rows for comparison in self.compared)

    def as_json(self) -> dict[str, Any]:
        """Return the report as a JSON document; offset ranges are [start, end)."""
        return {
            "archive": self.archive,
            "bootstrap": self.bootstrap or None,
            "equal": not self.differences,
            "commit": self.commit_number,
            "started_ms": self.started_ms,
            "seconds": round(self.seconds, 3),
            "files": self.files,
            "bytes": self.bytes,
            "rows": self.rows,
            "differences": dict(Counter(finding.kind for finding in self.differences)),
            "compared": [comparison.as_json() for comparison in self.compared],
            "findings": [finding.as_json() for finding in self.findings],
        }


def _finding(
    is_difference: bool,
    kind: str,
    text: str,
    tp: TopicPartition | None = None,
    file: str = "",
    offsets: Iterable[OffsetRange] = (),
    topic: str = "",
) -> Finding:
    assert kind in DIFFERENCES or not is_difference, kind
    topic, partition = (topic, None) if tp is None else tp
    return Finding(kind, text, topic, partition, file, tuple(offsets), is_difference)


# Creates a finding that makes the verification fail; `kind` is one of DIFFERENCES.
difference = partial(_finding, True)
# Creates a finding that does not.
note = partial(_finding, False)


def format_finding(finding: Finding) -> str:
    """Return one line: the kind, the file or partition, the text, and the offsets."""
    location = finding.topic
    if finding.partition is not None:
        location = f"{finding.topic}-{finding.partition}"
    if finding.file:
        location = finding.file if finding.partition is None else f"{finding.file} ({location})"
    parts = [finding.kind, location, finding.text, format_offsets(finding.offsets)]
    return ": ".join(part for part in parts if part)


def format_offsets(ranges: Sequence[OffsetRange]) -> str:
    """Return `offset 17` or `offsets 3, 10 to 19`, and how many ranges are omitted; an empty string for no range."""
    if not ranges:
        return ""
    texts = [str(start) if end - start == 1 else f"{start} to {end - 1}" for start, end in ranges[:MAX_PRINTED_RANGES]]
    is_single = len(ranges) == 1 and ranges[0].end - ranges[0].start == 1
    omitted = f" and {len(ranges) - MAX_PRINTED_RANGES} more ranges" if len(ranges) > MAX_PRINTED_RANGES else ""
    return f"offset{'' if is_single else 's'} {', '.join(texts)}{omitted}"


class CountedRows(NamedTuple):
    """Statistics of the rows of one partition in one file, as they were read."""

    file: DataFile
    stats: PartitionStats
    misdated: int  # rows whose timestamp has a different date than the directory

    @property
    def tp(self) -> TopicPartition:
        return TopicPartition(self.file.topic, self.stats.partition)


def check_manifest(state: ArchiveState, scope: VerificationScope) -> Iterator[Finding]:
    """Find contradictions within the manifest: in paths, dates and offsets, and holes without a gap."""
    for file in state.files.values():
        if not scope.has_file(file):
            continue
        if not file.path.startswith(f"topic={file.topic}/date={file.date}/"):
            yield difference("layout", f"the manifest assigns it to {file.topic} and {file.date}", file=file.path)
        for stats in file.partitions:
            tp = TopicPartition(file.topic, stats.partition)
            yield from _check_stats(file, tp, stats, state.covered.get(tp, ()))
    for tp, ranges in sorted(state.covered.items()):
        if scope.has_topic(tp.topic):
            yield from _check_holes(tp, ranges, state)


def _check_stats(
    file: DataFile, tp: TopicPartition, stats: PartitionStats, covered: tuple[OffsetRange, ...]
) -> Iterator[Finding]:
    offsets = stats.offsets
    count = offsets.end - offsets.start
    if not 0 < stats.rows <= count:
        yield difference("layout", f"the manifest claims {stats.rows} rows", tp, file.path, [offsets])
    uncovered = subtract_ranges([offsets], covered)
    if uncovered and stats.rows > count - sum(end - start for start, end in uncovered):
        yield difference("layout", "the manifest claims rows that no commit covers", tp, file.path, uncovered)


def _check_holes(tp: TopicPartition, covered: Sequence[OffsetRange], state: ArchiveState) -> Iterator[Finding]:
    between = [OffsetRange(previous.end, following.start) for previous, following in pairwise(covered)]
    gaps = [OffsetRange(gap.start, gap.end) for gap in state.gaps if (gap.topic, gap.partition) == tp]
    holes = subtract_ranges(between, gaps)
    if holes:
        yield difference("hole", "no commit covers them, and no gap explains why", tp, offsets=holes)


def check_rows(file: DataFile, counted: Iterable[PartitionStats]) -> Iterator[Finding]:
    """Compare the statistics of a file's rows with the committed ones."""
    committed_stats = {stats.partition: stats for stats in file.partitions}
    counted_stats = {stats.partition: stats for stats in counted}
    for partition in sorted(committed_stats.keys() | counted_stats.keys()):
        committed, found = committed_stats.get(partition), counted_stats.get(partition)
        if committed == found:
            continue
        if committed is None:
            text = f"{counted_stats[partition].rows} rows of a partition that was not committed in this file"
        elif found is None:
            text = f"all {committed.rows} committed rows are missing"
        else:
            text = "; ".join(_stats_changes(committed, found))
        known = [stats for stats in (committed, found) if stats is not None]
        offsets = OffsetRange(min(stats.first for stats in known), max(stats.last for stats in known) + 1)
        yield difference("rows", text, TopicPartition(file.topic, partition), file.path, [offsets])


def _stats_changes(committed: PartitionStats, found: PartitionStats) -> Iterator[str]:
    if committed.rows != found.rows:
        yield f"{found.rows} rows instead of {committed.rows}"
    if (committed.first, committed.last) != (found.first, found.last):
        yield f"offsets {found.first} to {found.last} instead of {committed.first} to {committed.last}"
    if committed.bytes != found.bytes:
        yield f"{found.bytes} bytes of keys and values instead of {committed.bytes}"
    if (committed.from_ms, committed.to_ms) != (found.from_ms, found.to_ms):
        yield f"timestamps {found.from_ms} to {found.to_ms} instead of {committed.from_ms} to {committed.to_ms}"
    if committed.checksum != found.checksum:
        yield f"checksum {found.checksum:016x} instead of {committed.checksum:016x}"


def may_be_uncovered(rows: CountedRows, state: ArchiveState) -> bool:
    """Return whether some of the rows may be at offsets that no commit covers; only their offsets can show it."""
    covered = state.covered.get(rows.tp, ())
    return not any(start <= rows.stats.first and rows.stats.last < end for start, end in covered)


def check_dates(counted: Iterable[CountedRows]) -> Iterator[Finding]:
    """Find files with rows whose date is not that of the directory."""
    for rows in counted:
        if rows.misdated:
            text = f"{rows.misdated} row{'s have' if rows.misdated > 1 else ' has'} a different date than"
            text += f" {rows.file.date} (UTC), within"
            yield difference("date", text, rows.tp, rows.file.path, [rows.stats.offsets])


def lost_offsets(committed: PartitionStats, found: Iterable[OffsetRange]) -> tuple[OffsetRange, ...]:
    """Return the committed offsets without a row. They are known only if each offset had a row when committed."""
    if committed.rows != committed.last - committed.first + 1:
        return ()
    return subtract_ranges([committed.offsets], found)
