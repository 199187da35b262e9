"""Decisions of an ingest (pure): which offsets the next batch adds to the archive, and which were lost before.

An archive continues in each partition after the last offset that is covered or known to be lost. Also: whether topics
and archive are still those with which a run started, and the wait between batches for a limit of records per second.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from kbroker.archive.offset_ranges import OffsetRange, intersect_ranges
from kbroker.archive.topic_state import Gap, TopicInfo, TopicState
from kbroker.common import TopicPartition
from kbroker.pipeline.errors import PipelineError

RETENTION = "retention"


class BatchRange(NamedTuple):
    """The offsets [start, end) of a partition that a batch adds to the archive; the log has those from `read_from`."""

    tp: TopicPartition
    start: int
    read_from: int
    end: int


class LogBounds(NamedTuple):
    """Where the logs of partitions start and end."""

    starts: Mapping[TopicPartition, int]
    ends: Mapping[TopicPartition, int]


def resume_offsets(states: Mapping[str, TopicState]) -> dict[TopicPartition, int]:
    """Return the offset at which the archive continues, for each partition that the states of its topics know."""
    return {
        TopicPartition(topic, partition): offset
        for topic, state in states.items()
        for partition, offset in state.resume_offsets().items()
    }


def plan_batch(resume: Mapping[TopicPartition, int], logs: LogBounds, max_records: int | None) -> list[BatchRange]:
    """Return the offsets that the next batch adds, at most about `max_records` and at least one for each partition.

    A partition that the archive does not know is new in its topic and is read from its beginning.
    """
    ranges = []
    for tp, end in sorted(logs.ends.items()):
        start = resume.get(tp, 0)
        if start < end:
            ranges.append(BatchRange(tp, start, min(end, max(start, logs.starts[tp])), end))
    total = sum(end - read_from for _, _, read_from, end in ranges)
    if max_records is None or total <= max_records:
        return ranges
    return [
        each._replace(end=min(each.end, each.read_from + max(1, (each.end - each.read_from) * max_records // total)))
        for each in ranges
    ]


def missing_offsets(resume: Mapping[TopicPartition, int], logs: LogBounds) -> dict[str, int]:
    """Return how many offsets of each topic the logs have and the archive does not."""
    result: dict[str, int] = {}
    for tp, end in logs.ends.items():
        start = max(resume.get(tp, 0), logs.starts[tp])
        result[tp.topic] = result.get(tp.topic, 0) + max(0, end - start)
    return result


class WrittenOffsets(NamedTuple):
    """The offsets of a file that a batch has written."""

    tp: TopicPartition
    first: int
    last: int


def require_within(written: Iterable[WrittenOffsets], ranges: Iterable[BatchRange]) -> None:
    """Raise PipelineError if a file has rows outside the ranges that the commit will cover."""
    ranges_by_tp = {each.tp: each for each in ranges}
    for tp, first, last in written:
        planned = ranges_by_tp.get(tp)
        if planned is None or first < planned.start or last >= planned.end:
            raise PipelineError(
                f"{tp}: Spark read offsets {first} to {last}, which are outside the batch; nothing of it is archived"
            )


def needs_row_search(planned: BatchRange, log_start: int, written: Iterable[WrittenOffsets]) -> bool:
    """Return whether some records below the log start offset were read before they were deleted.

    Then only the rows can show which ones were not read.
    """
    return log_start > planned.start and any(tp == planned.tp and first < log_start for tp, first, _ in written)


def lost_ranges(
    planned: BatchRange, log_start: int, missing: Iterable[OffsetRange] | None = None
) -> tuple[OffsetRange, ...]:
    """Return the offsets below the log start offset that have no row. `missing`: those without a row (default: all)."""
    batch_offsets = OffsetRange(planned.start, planned.end)
    deleted = OffsetRange(planned.start, min(log_start, planned.end))
    return intersect_ranges([batch_offsets] if missing is None else missing, [deleted])


class TopicsChangedError(PipelineError):
    """A topic was deleted while it was read; the batch is planned again for the current topics."""


def require_untruncated_logs(archived: Mapping[TopicPartition, int], log_ends: Mapping[TopicPartition, int]) -> None:
    """Raise PipelineError if a log ends before an archived offset: it was truncated, or it is another log."""
    for tp, offset in sorted(archived.items()):
        if tp in log_ends and log_ends[tp] < offset:
            raise PipelineError(
                f"{tp} ends at offset {log_ends[tp]}, but had offsets up to {offset}: the broker lost records or has "
                f"other data; archive the topic into another directory"
            )


def require_single_run(topic: str, before: TopicState, now: TopicState, partitions: Iterable[int]) -> None:
    """Raise PipelineError if another run has archived one of the partitions since the state `before` was read."""
    resume, current = before.resume_offsets(), now.resume_offsets()
    for partition in partitions:
        if current.get(partition) != resume.get(partition):
            raise PipelineError(
                f"another `kbroker archive run` has archived {topic}-{partition} at the same time: only one may write "
                f"to an archive; this one stops, and no record was archived twice"
            )


def require_same_topic(name: str, archived: TopicInfo | None, info: TopicInfo) -> None:
    """Raise PipelineError if a topic was deleted and created again since it was archived."""
    if not has_same_id(archived, info):
        assert archived is not None
        raise PipelineError(
            f"topic {name} was deleted and created again since it was archived (its id was {archived.topic_id} and "
            f"is now {info.topic_id}), so its offsets start again at 0: archive it into another directory"
        )


def has_same_id(archived: TopicInfo | None, info: TopicInfo) -> bool:
    """Return whether this may be the archived topic. Brokers of old versions have no topic ids."""
    return archived is None or not archived.topic_id or not info.topic_id or archived.topic_id == info.topic_id


def gaps_of(partition: int, lost: Sequence[OffsetRange]) -> list[Gap]:
    """Return the gaps of offsets that retention deleted."""
    return [Gap(partition, start, end, RETENTION) for start, end in lost]


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
