"""What a verification finds, and the report of it. Pure."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from kbroker.common import TopicPartition
from kbroker.pipeline.archive.manifest.model import OffsetRange

# Of one finding's offsets; what is more is counted.
TOLD_SPANS = 10

# Every kind of difference, and what it says. Another kind is a note.
DIFFERENCES = {
    "manifest": "a commit, or a folded state, that is not there, cannot be read, or does not follow",
    "layout": "a committed file whose path, dates or offsets contradict the manifest",
    "hole": "offsets between archived ones that nobody has archived, and no gap tells why",
    "missing file": "committed, and not there",
    "changed file": "its bytes are not those that were committed",
    "unreadable file": "Spark cannot read it",
    "columns": "it has other columns than an archive's files",
    "rows": "its rows are not those that were committed",
    "doubled": "a record that is there more than once",
    "uncovered": "a row at an offset that no commit covers",
    "date": "a row in the directory of another date than its timestamp's",
    "foreign file": "a file or directory that readers see and no commit names",
    "view": "Spark's own list of the files is not the manifest's",
    "missing record": "at the broker, and not in the archive",
    "unknown record": "in the archive, and not at the broker, which has its offset",
    "different record": "not the same in the archive and at the broker",
    "not compared": "a topic that the broker does not have, or has anew",
}


class Finding(NamedTuple):
    """One thing that is not as it should be, or a note that explains what was not looked at."""

    kind: str
    what: str
    topic: str = ""
    partition: int | None = None
    file: str = ""  # relative to the archive
    offsets: tuple[OffsetRange, ...] = ()
    is_difference: bool = True


class Compared(NamedTuple):
    """What of one partition was compared with the broker."""

    topic: str
    partition: int
    spans: tuple[OffsetRange, ...]
    archive_rows: int
    broker_rows: int
    equal: bool


@dataclass
class Report:
    """What one verification looked at, and found."""

    archive: str
    bootstrap: str  # empty: only the archive itself
    number: int = -1  # the latest commit that was looked at
    started_ms: int = 0
    seconds: float = 0.0
    files: int = 0
    bytes: int = 0
    rows: int = 0
    compared: list[Compared] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)

    @property
    def differences(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.is_difference]

    @property
    def notes(self) -> list[Finding]:
        return [finding for finding in self.findings if not finding.is_difference]

    @property
    def records_compared(self) -> int:
        return sum(compared.broker_rows for compared in self.compared)

    def as_json(self) -> dict[str, Any]:
        """The report as a JSON document; offsets are [start, end)."""
        return {
            "archive": self.archive,
            "bootstrap": self.bootstrap or None,
            "equal": not self.differences,
            "commit": self.number,
            "started_ms": self.started_ms,
            "seconds": round(self.seconds, 3),
            "files": self.files,
            "bytes": self.bytes,
            "rows": self.rows,
            "differences": dict(Counter(finding.kind for finding in self.differences)),
            "compared": [compared._asdict() for compared in self.compared],
            "findings": [finding._asdict() for finding in self.findings],
        }


def note(
    kind: str,
    what: str,
    at: TopicPartition | None = None,
    file: str = "",
    offsets: Sequence[OffsetRange] = (),
    topic: str = "",
) -> Finding:
    """What is told, and is no difference."""
    name, number = at if at is not None else (topic, None)
    return Finding(kind, what, name, number, file, tuple(offsets), is_difference=False)


def difference(
    kind: str,
    what: str,
    at: TopicPartition | None = None,
    file: str = "",
    offsets: Sequence[OffsetRange] = (),
    topic: str = "",
) -> Finding:
    """What makes a verification fail; `kind` is one of DIFFERENCES."""
    assert kind in DIFFERENCES, kind
    return note(kind, what, at, file, offsets, topic)._replace(is_difference=True)


def line(finding: Finding) -> str:
    """A finding as one line of text: where, what, and which offsets."""
    where = finding.file or finding.topic
    if finding.partition is not None:
        where = (
            f"{finding.file} ({finding.topic}-{finding.partition})" if finding.file else f"{where}-{finding.partition}"
        )
    text = f"{finding.kind}: {where}: {finding.what}" if where else f"{finding.kind}: {finding.what}"
    return f"{text}: {offsets_text(finding.offsets)}" if finding.offsets else text


def offsets_text(spans: Sequence[OffsetRange]) -> str:
    """`offset 17`, `offsets 3, 10 to 19`, and how many ranges were left out."""
    told = [str(start) if end - start == 1 else f"{start} to {end - 1}" for start, end in spans[:TOLD_SPANS]]
    single = len(spans) == 1 and spans[0].end - spans[0].start == 1
    more = f" and {len(spans) - TOLD_SPANS} more ranges" if len(spans) > TOLD_SPANS else ""
    return f"offset{'' if single else 's'} {', '.join(told)}{more}"


def as_spans(offsets: Iterable[int]) -> tuple[OffsetRange, ...]:
    """Single offsets as ranges, ascending."""
    return merged(OffsetRange(offset, offset + 1) for offset in offsets)


def merged(spans: Iterable[OffsetRange]) -> tuple[OffsetRange, ...]:
    """Ranges in any order as ascending ones that neither touch nor overlap."""
    result: list[OffsetRange] = []
    for span in sorted(span for span in spans if span.start < span.end):
        if result and span.start <= result[-1].end:
            result[-1] = OffsetRange(result[-1].start, max(result[-1].end, span.end))
        else:
            result.append(span)
    return tuple(result)


def minus(spans: Iterable[OffsetRange], taken: Iterable[OffsetRange]) -> tuple[OffsetRange, ...]:
    """What is in the one and not in the other."""
    left = []
    away = merged(taken)
    for start, end in merged(spans):
        at = start
        for other in away:
            if other.end <= at or other.start >= end:
                continue
            left.append(OffsetRange(at, other.start))
            at = other.end
        left.append(OffsetRange(at, end))
    return merged(left)


def common(spans: Iterable[OffsetRange], others: Iterable[OffsetRange]) -> tuple[OffsetRange, ...]:
    """What is in both."""
    both = merged(others)
    return merged(
        OffsetRange(max(start, other.start), min(end, other.end)) for start, end in merged(spans) for other in both
    )
