"""Which offsets a batch brings into an archive, and which were gone before. Pure.

Ranges are [start, end). Where an archive goes on in a partition is after the last offset that it covers or that it
knows to be gone.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from kbroker.common import TopicPartition
from kbroker.pipeline.archive.manifest.model import ArchiveState, CoveredRange, DataFile, Gap, OffsetRange
from kbroker.pipeline.errors import PipelineError

RETENTION = "retention"


class Wanted(NamedTuple):
    """What a batch has to bring of a partition."""

    partition: TopicPartition
    start: int
    end: int


def resume_offset(state: ArchiveState, partition: TopicPartition) -> int | None:
    """Where the archive goes on, or None where it knows nothing of the partition."""
    known = [gap.end for gap in state.gaps if (gap.topic, gap.partition) == partition]
    covered = state.next_offset(partition)
    return max([*known, *([] if covered is None else [covered])], default=None)


def resume_offsets(state: ArchiveState) -> dict[TopicPartition, int]:
    """`resume_offset` of every partition that the archive knows."""
    result = {partition: spans[-1].end for partition, spans in state.covered.items() if spans}
    for gap in state.gaps:
        partition = TopicPartition(gap.topic, gap.partition)
        result[partition] = max(gap.end, result.get(partition, 0))
    return result


def wanted_ranges(
    begins: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
    resume: Mapping[TopicPartition, int],
    starts: Mapping[TopicPartition, int],
) -> list[Wanted]:
    """What a batch from `begins` to `ends` has that the archive does not.

    A partition that is not in `begins` is new to the query, which reads it from where its log starts. `starts` says
    where the query was told to begin. PipelineError where the batch would leave out offsets without a word.
    """
    result = []
    for partition, end in sorted(ends.items()):
        expected = resume.get(partition, starts.get(partition, 0))
        begin = begins.get(partition, 0)
        if begin > expected:
            raise PipelineError(
                f"the checkpoint is at offset {begin} of {partition.topic}-{partition.partition} and the archive at "
                f"{expected}: they are not of one time"
            )
        if end > expected:
            result.append(Wanted(partition, expected, end))
    return result


def unwanted_below(
    begins: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
    resume: Mapping[TopicPartition, int],
    starts: Mapping[TopicPartition, int],
) -> dict[TopicPartition, int]:
    """The partitions of which a batch has records below these offsets that are archived already, or that the archive
    was not to begin with: Spark goes back to the last stable offset where an open transaction holds that below where
    it was told to begin."""
    expected = {partition: resume.get(partition, starts.get(partition, 0)) for partition in ends}
    return {partition: offset for partition, offset in expected.items() if begins.get(partition, 0) < offset}


def initial_gaps(expected: Mapping[TopicPartition, int], log_starts: Mapping[TopicPartition, int]) -> list[Gap]:
    """What is gone between where the archive goes on and where the logs start."""
    return [
        Gap(partition.topic, partition.partition, offset, log_starts[partition], RETENTION)
        for partition, offset in sorted(expected.items())
        if log_starts.get(partition, 0) > offset
    ]


def require_whole_logs(wanted: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]) -> None:
    """PipelineError where a log ends before an offset that it has had: it was truncated, or it is another one."""
    for partition, offset in sorted(wanted.items()):
        if partition in ends and ends[partition] < offset:
            raise PipelineError(
                f"{partition.topic}-{partition.partition} ends at offset {ends[partition]}, but had offsets up to "
                f"{offset}: the broker lost records or has other data; archive the topic into another directory"
            )


def needs_search(wanted: Wanted, log_start: int, files: Iterable[DataFile]) -> bool:
    """True where records below the log's start have been read before they went, so that only the rows can tell
    which were not."""
    return log_start > wanted.start and any(
        part.first < log_start
        for file in files
        if file.topic == wanted.partition.topic
        for part in file.parts
        if part.partition == wanted.partition.partition
    )


def gone(wanted: Wanted, log_start: int) -> list[OffsetRange]:
    """What is gone of a range of which nothing below the log's start was read."""
    end = min(log_start, wanted.end)
    return [OffsetRange(wanted.start, end)] if wanted.start < end else []


def holes(wanted: Wanted, log_start: int, jumps: Sequence[OffsetRange]) -> list[OffsetRange]:
    """What is gone of a range of which some was read: `jumps` are pairs (offset read, next offset read) between which
    there is nothing, the first beginning one before the range, the last ending where the range does."""
    end = min(log_start, wanted.end)
    spans = (OffsetRange(max(before + 1, wanted.start), min(after, end)) for before, after in jumps)
    return [span for span in spans if span.start < span.end]


def told(
    wanted: Sequence[Wanted], lost: Mapping[TopicPartition, Sequence[OffsetRange]]
) -> tuple[list[CoveredRange], list[Gap]]:
    """The ranges without what was lost, and that, as a commit says it."""
    covered, gaps = [], []
    for (topic, partition), start, end in wanted:
        at = start
        for span in sorted(lost.get(TopicPartition(topic, partition), ())):
            if at < span.start:
                covered.append(CoveredRange(topic, partition, at, span.start))
            gaps.append(Gap(topic, partition, span.start, span.end, RETENTION))
            at = span.end
        if at < end:
            covered.append(CoveredRange(topic, partition, at, end))
    return covered, gaps
