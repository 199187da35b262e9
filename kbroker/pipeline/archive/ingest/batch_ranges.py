"""Decisions of an ingest (pure): which offsets of a batch are new to the archive, and which were lost before.

An archive continues in each partition after the last offset that is covered or known to be lost. Also: whether topics
and archive are still those with which a run started, and the wait between batches for a limit of records per second.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from kbroker.common import TopicPartition
from kbroker.pipeline.archive.layout import OffsetRange, intersect_ranges, subtract_ranges
from kbroker.pipeline.archive.manifest import ArchiveState, CoveredRange, DataFile, Gap, TopicInfo
from kbroker.pipeline.errors import PipelineError

RETENTION = "retention"


class BatchRange(NamedTuple):
    """The offsets [start, end) of a partition that a batch adds to the archive."""

    tp: TopicPartition
    start: int
    end: int


def resume_offsets(state: ArchiveState) -> dict[TopicPartition, int]:
    """Return the offset at which the archive continues, for each partition that it knows."""
    result = {tp: ranges[-1].end for tp, ranges in state.covered.items() if ranges}
    for gap in state.gaps:
        tp = TopicPartition(gap.topic, gap.partition)
        result[tp] = max(gap.end, result.get(tp, 0))
    return result


def new_ranges(
    begins: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
    resume: Mapping[TopicPartition, int],
    starts: Mapping[TopicPartition, int],
) -> list[BatchRange]:
    """Return the ranges that a batch from `begins` to `ends` adds to the archive.

    A partition that is not in `begins` is new to the query, which reads it from the log start offset. `starts` are the
    offsets at which the query was started. Raises PipelineError if the batch would skip offsets silently.
    """
    result = []
    for tp, end in sorted(ends.items()):
        expected = resume.get(tp, starts.get(tp, 0))
        begin = begins.get(tp, 0)
        if begin > expected:
            raise PipelineError(
                f"the checkpoint is at offset {begin} of {tp} and the archive at {expected}: "
                f"one of them was restored from an older copy"
            )
        if end > expected:
            result.append(BatchRange(tp, expected, end))
    return result


def skip_below(
    begins: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
    resume: Mapping[TopicPartition, int],
    starts: Mapping[TopicPartition, int],
) -> dict[TopicPartition, int]:
    """Return the offsets below which records of the batch are not archived, for the partitions that have any.

    These records are archived already, or are before the start of the query: Spark reads from the last stable offset
    if an open transaction keeps it below the offset at which the query was started.
    """
    expected = {tp: resume.get(tp, starts.get(tp, 0)) for tp in ends}
    return {tp: offset for tp, offset in expected.items() if begins.get(tp, 0) < offset}


def initial_gaps(expected: Mapping[TopicPartition, int], log_starts: Mapping[TopicPartition, int]) -> list[Gap]:
    """Return the gaps between the expected offsets and the log start offsets."""
    return [
        Gap(*tp, offset, log_starts[tp], RETENTION)
        for tp, offset in sorted(expected.items())
        if log_starts.get(tp, 0) > offset
    ]


def needs_row_search(batch_range: BatchRange, log_start: int, files: Iterable[DataFile]) -> bool:
    """Return whether some records below the log start offset were read before they were deleted.

    Then only the rows can show which ones were not read.
    """
    return log_start > batch_range.start and any(
        stats.first < log_start
        for file in files
        if file.topic == batch_range.tp.topic
        for stats in file.partitions
        if stats.partition == batch_range.tp.partition
    )


def lost_ranges(
    batch_range: BatchRange, log_start: int, missing: Iterable[OffsetRange] | None = None
) -> tuple[OffsetRange, ...]:
    """Return the offsets below the log start offset that have no row. `missing`: those without a row (default: all)."""
    batch_offsets = OffsetRange(batch_range.start, batch_range.end)
    deleted = OffsetRange(batch_range.start, min(log_start, batch_range.end))
    return intersect_ranges([batch_offsets] if missing is None else missing, [deleted])


def covered_and_gaps(
    ranges: Iterable[BatchRange], lost: Mapping[TopicPartition, Sequence[OffsetRange]]
) -> tuple[list[CoveredRange], list[Gap]]:
    """Return the ranges that a commit covers, and its gaps."""
    covered, gaps = [], []
    for tp, start, end in ranges:
        lost_in_range = lost.get(tp, ())
        covered += [CoveredRange(*tp, *kept) for kept in subtract_ranges([OffsetRange(start, end)], lost_in_range)]
        gaps += [Gap(*tp, *deleted, RETENTION) for deleted in lost_in_range]
    return covered, gaps


class TopicsChangedError(PipelineError):
    """A topic was deleted while the query read it; the query is restarted with the current topics."""


def require_untruncated_logs(archived: Mapping[TopicPartition, int], log_ends: Mapping[TopicPartition, int]) -> None:
    """Raise PipelineError if a log ends before an archived offset: it was truncated, or it is another log."""
    for tp, offset in sorted(archived.items()):
        if tp in log_ends and log_ends[tp] < offset:
            raise PipelineError(
                f"{tp} ends at offset {log_ends[tp]}, but had offsets up to {offset}: the broker lost records or has "
                f"other data; archive the topic into another directory"
            )


def require_single_run(
    resume: Mapping[TopicPartition, int], state: ArchiveState, partitions: Iterable[TopicPartition]
) -> None:
    """Raise PipelineError if another run has archived one of the partitions since `resume` was read."""
    current = resume_offsets(state)
    for tp in partitions:
        if current.get(tp) != resume.get(tp):
            raise PipelineError(
                f"another `kbroker archive run` has archived {tp} at the same time: only one may write to an archive; "
                f"this one stops, and no record was archived twice"
            )


def require_same_topics(state: ArchiveState, topics: Mapping[str, TopicInfo]) -> None:
    """Raise PipelineError if a topic was deleted and created again since it was archived."""
    for name, info in topics.items():
        archived = state.topics.get(name)
        if archived is not None and archived.topic_id and info.topic_id and archived.topic_id != info.topic_id:
            raise PipelineError(
                f"topic {name} was deleted and created again since it was archived (its id was {archived.topic_id} and "
                f"is now {info.topic_id}), so its offsets start again at 0: archive it into another directory"
            )


def changed_topics(state: ArchiveState, topics: Mapping[str, TopicInfo]) -> dict[str, TopicInfo] | None:
    """Return the topics whose information differs from the archive's; None if there are none."""
    return {name: info for name, info in topics.items() if state.topics.get(name) != info} or None


@dataclass
class RateLimit:
    """At most `rate` records per second on average since the first batch, plus one batch."""

    rate: float
    _free_at_s: float | None = None  # when the rate allows the next batch

    def delay_s(self, now_s: float) -> float:
        """Return the seconds until the next batch may begin."""
        return 0.0 if self._free_at_s is None else max(0.0, self._free_at_s - now_s)

    def record_batch(self, records: int, now_s: float) -> None:
        """Count a batch that begins now."""
        self._free_at_s = max(now_s, self._free_at_s or now_s) + records / self.rate


def max_batch_records(configured: int | None, rate: float | None, interval_s: float) -> int | None:
    """Return the lower of the configured maximum and what the rate allows in an interval; None for no limit."""
    limits = [
        limit for limit in (configured, None if rate is None else max(1, int(rate * interval_s))) if limit is not None
    ]
    return min(limits, default=None)
