"""Decides which offsets of a batch are new to the archive, and which were lost before they were read (pure).

An archive continues in each partition after the last offset that is covered or known to be lost.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from kbroker.common import TopicPartition
from kbroker.pipeline.archive.manifest.model import ArchiveState, CoveredRange, DataFile, Gap
from kbroker.pipeline.archive.offset_ranges import OffsetRange, intersect_ranges, subtract_ranges
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
