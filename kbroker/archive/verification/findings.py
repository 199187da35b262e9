"""What a verification covers, finds and reports (pure)."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, NamedTuple

from kbroker.archive.data_files import DataFile
from kbroker.archive.offset_ranges import OffsetRange, intersect_ranges, merge_ranges
from kbroker.common import TopicPartition

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def date_of(timestamp_ms: int) -> str:
    """Return the date in UTC as YYYY-MM-DD."""
    return f"{_EPOCH + timedelta(milliseconds=timestamp_ms):%Y-%m-%d}"


@dataclass(frozen=True)
class VerificationScope:
    """Selects what is verified; by default everything."""

    topics: frozenset[str] = frozenset()
    dates: frozenset[str] = frozenset()  # YYYY-MM-DD
    offsets: OffsetRange | None = None
    times_ms: tuple[int, int] | None = None  # timestamps of the records: [start, end)

    @property
    def selects_by_time(self) -> bool:
        return bool(self.dates) or self.times_ms is not None

    def has_file(self, file: DataFile) -> bool:
        """Return whether the file may have rows in the scope."""
        if self.dates and date_of(file.from_ms) not in self.dates and date_of(file.to_ms) not in self.dates:
            return False
        if self.offsets is not None and not intersect_ranges([file.offsets], [self.offsets]):
            return False
        return self.times_ms is None or (file.to_ms >= self.times_ms[0] and file.from_ms < self.times_ms[1])

    def has_time(self, timestamp_ms: int) -> bool:
        if self.times_ms is not None and not self.times_ms[0] <= timestamp_ms < self.times_ms[1]:
            return False
        return not self.dates or date_of(timestamp_ms) in self.dates

    def limit(self, ranges: Iterable[OffsetRange]) -> tuple[OffsetRange, ...]:
        """Return the part of offset ranges that is in the scope."""
        return merge_ranges(ranges) if self.offsets is None else intersect_ranges(ranges, [self.offsets])


# Ranges in the text of one finding; the JSON report contains all.
MAX_PRINTED_RANGES = 10

# Every kind of difference. A finding of another kind is a note.
DIFFERENCES = {
    "metadata": "a metadata, manifest list or manifest file of the table is missing or cannot be read",
    "foreign change": "another program has changed the table",
    "layout": "what the metadata says of a file contradicts itself, the covered offsets or the file's footer",
    "hole": "offsets between archived ones that are not archived, without a gap that explains why",
    "missing file": "a file of the table does not exist",
    "changed file": "its bytes are not those that were committed",
    "unreadable file": "it cannot be read as Parquet",
    "columns": "its columns are not those of the table",
    "rows": "its rows are not those that were committed",
    "doubled": "a record that is in the table more than once",
    "uncovered": "a row at an offset that no commit covers, or that a gap says is gone",
    "date": "a row in a file of another day or hour than that of its timestamp",
    "foreign file": "a file in the table's directory that is not one of the table, nor of kbroker",
    "missing record": "at the broker, but not in the archive",
    "unknown record": "in the archive, but not at the broker, although its log has the offset",
    "different record": "not the same in the archive and at the broker",
    "not compared": "the topic does not exist at the broker, or was created again, or the comparison failed",
}


class Finding(NamedTuple):
    """A difference, or a note that explains what was not compared."""

    kind: str
    text: str
    topic: str = ""
    partition: int | None = None
    file: str = ""  # relative to the archive, or a URI
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
    commits: dict[str, int] = field(default_factory=dict)  # by topic: the number of the commit that was verified
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
            "commits": self.commits,
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
