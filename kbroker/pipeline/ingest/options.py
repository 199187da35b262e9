"""The options of an ingest, and what it reports."""

import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from kbroker.archive.catalogs import SQLITE
from kbroker.archive.data_files import MAX_FILE_BYTES, DataFile
from kbroker.archive.decoding.settings import DecodeSettings
from kbroker.archive.topic_state import Gap
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
    committed_only: bool | None = None  # None: as the archive, and a new one has only committed records
    once: bool = False
    interval_s: float = 10.0  # between batches
    max_batch_records: int | None = MAX_BATCH_RECORDS
    rate: float | None = None  # records per second
    keep_ms: int | None = None  # delete the records of days that are older from the archive
    start: StartPosition = field(default_factory=StartPosition)
    broker_wait_s: float = 300.0
    observe_interval_s: float = OBSERVE_INTERVAL_S  # between reads of topic configs and group offsets
    period: str | None = None  # of which a file has the records: day (the default), hour; None: that of the archive
    catalog: str = SQLITE  # of a new archive in a local directory
    max_file_bytes: int = MAX_FILE_BYTES  # before compression
    decode: DecodeSettings | None = None  # None: the settings of each table
    metrics: tuple[str, int] | None = None  # the address at which Prometheus reads them
    registry_url: str = ""  # with the credentials that `decode` does not have


@dataclass(frozen=True)
class Reporter:
    """Prints messages, one line each."""

    progress: Callable[[str], None]
    warn: Callable[[str], None]


class TopicLag(NamedTuple):
    """What the archive of a topic lacks."""

    records: int  # offsets
    complete_s: float  # when it last lacked nothing, or the run began; seconds since the epoch


@dataclass
class IngestSummary:
    """The totals of a run."""

    batches: int = 0
    files: int = 0
    file_bytes: int = 0
    records: dict[str, int] = field(default_factory=dict)  # by topic
    record_bytes: int = 0  # of keys and values
    gaps: dict[str, list[Gap]] = field(default_factory=dict)  # by topic
    dead_letters: dict[str, int] = field(default_factory=dict)  # by topic
    errors: int = 0  # batches that were repeated
    commits_s: dict[str, float] = field(default_factory=dict)  # by topic, the time of the last commit of records
    lags: dict[str, TopicLag] = field(default_factory=dict)
    begin_s: float = field(default_factory=time.time)

    def set_lags(self, missing: Mapping[str, int]) -> None:
        """Set how many offsets of each topic are not archived."""
        now_s = time.time()
        for topic, records in missing.items():
            before = self.lags.get(topic, TopicLag(0, self.begin_s))
            self.lags[topic] = TopicLag(records, before.complete_s if records else now_s)

    def add_files(self, topic: str, files: Sequence[DataFile]) -> None:
        self.files += len(files)
        self.file_bytes += sum(file.size for file in files)
        if files:
            self.records[topic] = self.records.get(topic, 0) + sum(file.rows for file in files)
            self.commits_s[topic] = time.time()

    def add_dead_letters(self, files: Mapping[str, Sequence[DataFile]]) -> None:
        for topic, added in files.items():
            self.dead_letters[topic] = self.dead_letters.get(topic, 0) + sum(file.rows for file in added)


def format_gap(topic: str, gap: Gap) -> str:
    return (
        f"{topic}-{gap.partition}: offsets {gap.start} to {gap.end - 1} ({gap.end - gap.start:,}) were deleted "
        f"before they could be archived: they are below the log start offset ({gap.reason})"
    )
