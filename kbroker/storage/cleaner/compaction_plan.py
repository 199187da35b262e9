"""Which part of a log to compact, and the input and output of the process that does it: plain data, encoded as JSON.

The active segment is never compacted.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from kbroker.storage import file_names
from kbroker.storage.cleaner.source_segments import SourceSegment
from kbroker.storage.log.log import Log
from kbroker.storage.log.segment import LogSegment
from kbroker.storage.log.transaction_index import AbortedTransaction
from kbroker.storage.producers.producer_table import FrozenProducers


@dataclass(slots=True, frozen=True)
class CompactionPlan:
    """`sources`: all segments up to the last one that may be compacted; keys are read from `first_dirty_offset` on.

    `map_bytes` bounds the memory for keys, `io_bytes` the read buffer and the write buffer, `rate` the bytes read and
    written per second (None: no limit). `aborted_later`: aborted transactions with a batch in the sources and a marker
    after them. `producers`: the state of the producers, of which compaction retains the last batches.
    """

    directory: str
    sources: tuple[SourceSegment, ...]
    first_dirty_offset: int
    now_ms: int
    delete_retention_ms: int
    segment_bytes: int
    index_interval_bytes: int
    map_bytes: int
    io_bytes: int
    rate: float | None
    aborted_later: tuple[AbortedTransaction, ...] = ()
    producers: FrozenProducers = field(default_factory=FrozenProducers)

    @property
    def end_offset(self) -> int:
        return self.sources[-1].end_offset


@dataclass(slots=True, frozen=True)
class CleanedSegment:
    """A segment [base_offset, end_offset) whose files are complete and synced under their `.cleaned` names.

    It replaces the segments with the base offsets `source_offsets`.
    """

    source_offsets: tuple[int, ...]
    base_offset: int
    end_offset: int
    size: int
    first_timestamp: int | None
    max_timestamp: int
    max_timestamp_offset: int
    has_transaction_index: bool = False


@dataclass(slots=True, frozen=True)
class CompactionResult:
    """`cleaned_to`: below this offset each key occurs once. `failure`: the reason if nothing was compacted.

    `damaged`: a retry would fail too, since a segment is damaged."""

    cleaned: tuple[CleanedSegment, ...] = ()
    cleaned_to: int = -1
    failure: str | None = None
    damaged: bool = False


def encode_plan(plan: CompactionPlan) -> bytearray:
    """Encode a plan in a thread: a line of JSON, and the producers, of which there may be hundreds of thousands."""
    values = _fields_of(plan)
    del values["producers"]
    return plan.producers.encode(bytearray(_encode(values) + b"\n"))


def decode_plan(data: bytes | bytearray) -> CompactionPlan:
    line, _, producers = data.partition(b"\n")
    values = json.loads(line)
    values["producers"] = FrozenProducers.decode(producers)
    values["sources"] = tuple(SourceSegment(*source) for source in values["sources"])
    values["aborted_later"] = tuple(AbortedTransaction(*transaction) for transaction in values["aborted_later"])
    return CompactionPlan(**values)


def encode_result(result: CompactionResult) -> bytes:
    return _encode({**_fields_of(result), "cleaned": [asdict(cleaned) for cleaned in result.cleaned]})


def decode_result(data: bytes) -> CompactionResult:
    values = json.loads(data)
    values["cleaned"] = tuple(
        CleanedSegment(**{**cleaned, "source_offsets": tuple(cleaned["source_offsets"])})
        for cleaned in values["cleaned"]
    )
    return CompactionResult(**values)


def _fields_of(value: CompactionPlan | CompactionResult) -> dict[str, Any]:
    return {field.name: getattr(value, field.name) for field in fields(value)}


def _encode(values: dict[str, Any]) -> bytes:
    return json.dumps(values).encode()


@dataclass(slots=True, frozen=True)
class LogToClean:
    """A log that can be compacted.

    `clean_bytes` and `dirty_bytes` are the sizes of the closed segments before and from `first_dirty_offset` on;
    `is_overdue`: max.compaction.lag.ms has passed.
    """

    sources: tuple[SourceSegment, ...]
    first_dirty_offset: int
    clean_bytes: int
    dirty_bytes: int
    is_overdue: bool

    @property
    def cleanable_ratio(self) -> float:
        return self.dirty_bytes / (self.clean_bytes + self.dirty_bytes)

    @property
    def priority(self) -> tuple[bool, float]:
        """Overdue logs first, then those with the highest dirty ratio."""
        return self.is_overdue, self.cleanable_ratio

    def needs_cleaning(self, min_cleanable_ratio: float) -> bool:
        """Return whether to compact the log now: enough of it is dirty, or some records have waited too long."""
        return self.is_overdue or self.cleanable_ratio > min_cleanable_ratio


def find_log_to_clean(log: "Log", now_ms: int, first_unstable_offset: int) -> LogToClean | None:
    """Return the part of a log below `first_unstable_offset` that can be compacted; None if there is none.

    Segments younger than min.compaction.lag.ms wait, and so do all segments after them. Unsynced segments, such as
    after a crash, wait too: otherwise a power loss could remove the latest record of a key after compaction has removed
    the record before it. So do segments from the recovery point in the checkpoint file on, since recovery takes the
    gaps that compaction leaves there for damage; and those whose transaction index is not written yet.
    """
    if log.health.offline is not None:
        return None
    config = log.config
    max_timestamp = now_ms - config.min_compaction_lag_ms
    first_dirty_offset = max(log.cleaned_to, log.log_start_offset)
    sources = []
    clean_bytes = dirty_bytes = 0
    oldest = now_ms
    limit = min(first_unstable_offset, log.durable_recovery_point)
    for segment in log.segments:
        end = segment.end_offset
        index = segment.indexes.transaction
        if end is None or end > limit or index.has_unwritten:
            break
        if end <= first_dirty_offset:
            clean_bytes += segment.size
        elif config.min_compaction_lag_ms > 0 and segment.newest_timestamp() > max_timestamp:
            break
        else:
            dirty_bytes += segment.size
            if segment.first_timestamp is not None and 0 < segment.first_timestamp < oldest:
                oldest = segment.first_timestamp
        sources.append(SourceSegment(segment.base_offset, end, segment.size, len(index)))
    if not dirty_bytes:
        return None
    is_overdue = now_ms - oldest > config.max_compaction_lag_ms
    return LogToClean(tuple(sources), first_dirty_offset, clean_bytes, dirty_bytes, is_overdue)


def find_aborted_later_blocking(log: "Log", to_clean: LogToClean) -> tuple[AbortedTransaction, ...]:
    """Return the aborted transactions with a batch in the sources and a marker after them.

    Raises OSError, ValueError if an index is damaged, SegmentGone.
    """
    start, end = to_clean.sources[0].base_offset, to_clean.sources[-1].end_offset
    found: list[AbortedTransaction] = []
    for segment in log.segments:
        if segment.base_offset >= end and segment.collect_aborted(end, end, True, found):
            break
    return tuple(transaction for transaction in found if transaction.first_offset >= start)


def find_undated_segments(log: "Log") -> list[LogSegment]:
    """Return the dirty segments without a first timestamp, which is not read when a log is opened."""
    return [
        segment
        for segment in log.segments
        if segment.first_timestamp is None and segment.size and (segment.end_offset or 0) > log.cleaned_to
    ]


def load_first_timestamps_blocking(segments: Sequence[LogSegment]) -> None:
    for segment in segments:
        try:
            segment.load_first_timestamp_blocking()
        except OSError:
            # The segment was deleted, or the disk fails, which a later read will report.
            continue


def remove_leftovers_blocking(log: "Log") -> None:
    """Remove the files of a cleaner that was killed."""
    try:
        for name in log.disk.listdir(log.directory):
            if name.endswith(file_names.CLEANED):
                log.disk.unlink(f"{log.directory}/{name}")
    except OSError:
        # The topic was deleted, or else the next start removes the files.
        return
