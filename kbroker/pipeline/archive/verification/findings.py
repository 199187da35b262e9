"""What a verification covers, its findings and its report (pure)."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from kbroker.common import TopicPartition
from kbroker.pipeline.archive import schema
from kbroker.pipeline.archive.layout import OffsetRange, intersect_ranges, merge_ranges
from kbroker.pipeline.archive.manifest.model import DataFile, PartitionStats


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
    ranges: tuple[OffsetRange, ...]
    archive_rows: int
    broker_rows: int
    is_equal: bool

    def as_json(self) -> dict[str, Any]:
        return {
            "topic": self.topic,
            "partition": self.partition,
            "spans": self.ranges,
            "archive_rows": self.archive_rows,
            "broker_rows": self.broker_rows,
            "equal": self.is_equal,
        }


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


def note(
    kind: str,
    text: str,
    tp: TopicPartition | None = None,
    file: str = "",
    offsets: Iterable[OffsetRange] = (),
    topic: str = "",
) -> Finding:
    """Create a finding that is not a difference."""
    topic, partition = (topic, None) if tp is None else tp
    return Finding(kind, text, topic, partition, file, tuple(offsets), is_difference=False)


def difference(
    kind: str,
    text: str,
    tp: TopicPartition | None = None,
    file: str = "",
    offsets: Iterable[OffsetRange] = (),
    topic: str = "",
) -> Finding:
    """Create a finding that makes the verification fail; `kind` is one of DIFFERENCES."""
    assert kind in DIFFERENCES, kind
    return note(kind, text, tp, file, offsets, topic)._replace(is_difference=True)


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
