"""The options of an ingest, and what it reports."""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from kbroker.pipeline.archive.manifest import DataFile, Gap
from kbroker.pipeline.errors import PipelineError

MAX_BATCH_RECORDS = 2_000_000
OBSERVE_INTERVAL_S = 60.0


@dataclass(frozen=True)
class Subscription:
    """Topics by name, or all topics whose complete name matches a regular expression."""

    topics: tuple[str, ...] = ()  # sorted, distinct
    pattern: str | None = None

    def __str__(self) -> str:
        return ", ".join(self.topics) if self.pattern is None else f"the pattern {self.pattern}"

    @property
    def spark_option(self) -> tuple[str, str]:
        """Name and value of the option of Spark's Kafka source."""
        return ("subscribe", ",".join(self.topics)) if self.pattern is None else ("subscribePattern", self.pattern)


def create_subscription(topics: Iterable[str], pattern: str | None) -> Subscription:
    """Return a subscription. Raises PipelineError unless there are either valid topic names or a pattern."""
    names = tuple(sorted(set(topics)))
    if bool(names) == (pattern is not None):
        raise PipelineError("specify either the topics to archive or --pattern REGEX")
    for name in names:
        if not re.fullmatch(r"[A-Za-z0-9._-]{1,249}", name):
            raise PipelineError(f"{name!r} is not a valid topic name")
    return Subscription(names, pattern)


@dataclass(frozen=True)
class StartPosition:
    """Where to start in topics that the archive does not contain."""

    kind: Literal["earliest", "latest", "time"] = "earliest"
    time_ms: int = 0


@dataclass(frozen=True)
class IngestOptions:
    """The options of one run."""

    bootstrap: str
    subscription: Subscription
    committed_only: bool = False
    once: bool = False
    interval_s: float = 10.0  # between batches
    max_batch_records: int | None = MAX_BATCH_RECORDS
    rate: float | None = None  # records per second
    start: StartPosition = field(default_factory=StartPosition)
    broker_wait_s: float = 300.0
    observe_interval_s: float = OBSERVE_INTERVAL_S  # between reads of topic configs and group offsets


@dataclass(frozen=True)
class Reporter:
    """Prints messages, one line each."""

    progress: Callable[[str], None]
    warn: Callable[[str], None]


@dataclass
class IngestSummary:
    """The totals of a run."""

    batches: int = 0
    files: int = 0
    file_bytes: int = 0
    records: dict[str, int] = field(default_factory=dict)  # by topic
    record_bytes: int = 0  # of keys and values
    gaps: list[Gap] = field(default_factory=list)
    last_commit: int = -1

    def add_batch(self, files: Sequence[DataFile], gaps: Sequence[Gap]) -> None:
        self.batches += 1
        self.gaps += gaps
        self.files += len(files)
        for file in files:
            self.file_bytes += file.size
            self.record_bytes += sum(stats.bytes for stats in file.partitions)
            self.records[file.topic] = self.records.get(file.topic, 0) + file.rows


def format_gap(gap: Gap) -> str:
    return (
        f"{gap.topic}-{gap.partition}: offsets {gap.start} to {gap.end - 1} ({gap.end - gap.start:,}) were deleted "
        f"before they could be archived: they are below the log start offset ({gap.reason})"
    )
