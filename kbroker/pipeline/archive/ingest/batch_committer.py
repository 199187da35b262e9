"""Commits one batch of the streaming query to the archive, exactly once.

Spark records where a batch ends before it processes the batch, and repeats an unfinished batch with the same offsets.
The commit contains the query and the batch, and its offsets must continue those of the archive. Records of a batch that
are archived already are skipped.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from kbroker.common import TopicPartition
from kbroker.pipeline.archive.archive import Archive, archive_dataframe
from kbroker.pipeline.archive.ingest.batch_ranges import (
    BatchRange,
    RateLimit,
    TopicsChangedError,
    changed_topics,
    covered_and_gaps,
    lost_ranges,
    needs_row_search,
    new_ranges,
    require_same_topics,
    require_single_run,
    require_untruncated_logs,
    resume_offsets,
    skip_below,
)
from kbroker.pipeline.archive.ingest.checkpoint import CheckpointDirectory, CheckpointGeneration
from kbroker.pipeline.archive.ingest.cluster_retry import RetryingCluster, RunStopped, StopEvent
from kbroker.pipeline.archive.ingest.options import IngestOptions, IngestSummary, Reporter, format_gap
from kbroker.pipeline.archive.layout import OffsetRange
from kbroker.pipeline.archive.manifest import ArchiveState, DataFile, Gap, ManifestCommit, QueryBatch, TopicInfo
from kbroker.pipeline.archive.staging import data_file_writer
from kbroker.pipeline.cluster_admin import ClusterAdmin
from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.spark import functions as f

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


TopicFilter = Callable[[str], bool]


class _Logs(NamedTuple):
    """The topics of a batch and the offsets of their logs, read after the records."""

    topics: Mapping[str, TopicInfo]
    log_starts: Mapping[TopicPartition, int]
    log_ends: Mapping[TopicPartition, int]


@dataclass
class IngestRun:
    """What the parts of one run share."""

    spark: "SparkSession"
    archive: Archive
    checkpoints: CheckpointDirectory
    options: IngestOptions
    matches: TopicFilter | None  # the compiled pattern of the topics
    stop: StopEvent
    reporter: Reporter
    rate_limit: RateLimit | None
    summary: IngestSummary

    def new_cluster(self) -> RetryingCluster:
        return RetryingCluster(self.options.bootstrap, self.options.broker_wait_s, self.stop, self.reporter.warn)


class BatchCommitter:
    """The foreachBatch function of the streaming query. Spark calls it in a separate thread."""

    def __init__(self, run: IngestRun, checkpoint: CheckpointGeneration) -> None:
        self.run = run
        self.checkpoint = checkpoint
        self.cluster = run.new_cluster()  # a separate connection, because of the thread
        self.failure: Exception | None = None
        self.is_busy = False
        self.finished_batches = 0

    def __call__(self, frame: "DataFrame", batch: int) -> None:
        self.is_busy = True
        try:
            if self.run.stop.count:
                raise RunStopped
            self._process(frame, batch)
            self.finished_batches += 1
        except Exception as error:
            self.failure = error
            raise
        finally:
            self.is_busy = False

    def _process(self, frame: "DataFrame", batch: int) -> None:
        state = self.run.archive.state()
        metadata = self.checkpoint.metadata
        if state.last_batches.get(metadata.query_id, -1) >= batch:
            return  # committed by a run that was killed before Spark finished the batch
        begins, ends = self.checkpoint.batch_offsets(batch)
        resume = resume_offsets(state)
        ranges = new_ranges(begins, ends, resume, metadata.starts)
        if ranges:
            self._wait_for_rate(ranges)
            rows = _drop_below(frame, skip_below(begins, ends, resume, metadata.starts))
            self._archive(rows, batch, state, ranges)

    def _wait_for_rate(self, ranges: Sequence[BatchRange]) -> None:
        limit = self.run.rate_limit
        if limit is not None:
            self.run.stop.wait(limit.delay_s(time.monotonic()))
            limit.record_batch(sum(end - start for _, start, end in ranges), time.monotonic())

    def _archive(self, rows: "DataFrame", batch: int, state: ArchiveState, ranges: Sequence[BatchRange]) -> None:
        start_s = time.monotonic()
        resume = resume_offsets(state)
        with data_file_writer(self.run.spark, self.run.archive) as writer:
            files = writer.write(rows)
            _require_within(files, ranges)
            logs = self._read_logs(state, ranges)
            writer.publish()
            covered, gaps = covered_and_gaps(ranges, self._find_lost(state, files, ranges, logs.log_starts))

            def build(current: ArchiveState) -> ManifestCommit:
                require_single_run(resume, current, [tp for tp, _, _ in ranges])
                return ManifestCommit(
                    kind="append",
                    time_ms=time.time_ns() // 1_000_000,
                    add=tuple(files),
                    covered=tuple(covered),
                    gaps=tuple(gaps),
                    query=QueryBatch(self.checkpoint.metadata.query_id, batch),
                    topics=changed_topics(current, logs.topics),
                )

            self.run.summary.last_commit = self.run.archive.commit(build).commit_number
        self._report(batch, files, gaps, time.monotonic() - start_s)

    def _read_logs(self, state: ArchiveState, ranges: Sequence[BatchRange]) -> _Logs:
        """Return topics and offsets, requested after the records were read.

        If the topic ids have not changed since the last commit, the records belong to these topics.
        """
        partitions = [tp for tp, _, _ in ranges]
        names = sorted({tp.topic for tp in partitions})
        committed_only = self.checkpoint.metadata.committed_only

        def request(cluster: ClusterAdmin) -> _Logs:
            topics = cluster.describe_topics(names)
            if len(topics) < len(names):
                deleted = ", ".join(sorted(set(names) - set(topics)))
                raise TopicsChangedError(f"topics were deleted while they were archived: {deleted}")
            return _Logs(topics, cluster.beginning_offsets(partitions), cluster.end_offsets(partitions, committed_only))

        read_ends = {tp: end for tp, _, end in ranges}
        logs = self.cluster.call_until_valid(request, lambda logs: require_untruncated_logs(read_ends, logs.log_ends))
        require_same_topics(state, logs.topics)
        return logs

    def _find_lost(
        self,
        state: ArchiveState,
        files: Sequence[DataFile],
        ranges: Sequence[BatchRange],
        log_starts: Mapping[TopicPartition, int],
    ) -> dict[TopicPartition, tuple[OffsetRange, ...]]:
        """Return the offsets of the batch that retention deleted before Spark read them."""
        lost = {}
        for batch_range in ranges:
            log_start = log_starts[batch_range.tp]
            is_partial = needs_row_search(batch_range, log_start, files)
            missing = self._find_missing(state, files, batch_range) if is_partial else None
            lost[batch_range.tp] = lost_ranges(batch_range, log_start, missing)
        return lost

    def _find_missing(
        self, state: ArchiveState, files: Sequence[DataFile], batch_range: BatchRange
    ) -> list[OffsetRange]:
        """Return the offsets of a batch without a row."""
        from pyspark.sql import Window

        (topic, partition), start, end = batch_range
        topic_files = [file for file in files if file.topic == topic]
        rows = archive_dataframe(self.run.spark, self.run.archive, state, topic_files)
        rows = rows.where(f.col("partition") == partition)
        previous = f.lag("offset", 1, start - 1).over(Window.orderBy("offset"))
        jumps = rows.select(previous.alias("previous"), "offset").where("offset > previous + 1").collect()
        last = max(stats.last for file in topic_files for stats in file.partitions if stats.partition == partition)
        return [*(OffsetRange(row.previous + 1, row.offset) for row in jumps), OffsetRange(last + 1, end)]

    def _report(self, batch: int, files: Sequence[DataFile], gaps: Sequence[Gap], seconds: float) -> None:
        self.run.summary.add_batch(files, gaps)
        for gap in gaps:
            self.run.reporter.warn(format_gap(gap))
        records = sum(file.rows for file in files)
        size = sum(file.size for file in files)
        rate = f"{records / seconds:,.0f} records/s" if seconds > 0 else ""
        self.run.reporter.progress(
            f"batch {batch}: {records:,} records in {len(files)} files of {size:,} bytes in {seconds:.1f} s ({rate})"
        )


def _drop_below(frame: "DataFrame", offsets: Mapping[TopicPartition, int]) -> "DataFrame":
    """Drop the records of each partition that are below its offset."""
    for (topic, partition), offset in offsets.items():
        is_partition = (f.col("topic") == topic) & (f.col("partition") == partition)
        frame = frame.where(~(is_partition & (f.col("offset") < offset)))
    return frame


def _require_within(files: Sequence[DataFile], ranges: Sequence[BatchRange]) -> None:
    """Raise PipelineError if a row is outside the ranges that the commit will cover."""
    ranges_by_tp = {batch_range.tp: batch_range for batch_range in ranges}
    for file in files:
        for stats in file.partitions:
            tp = TopicPartition(file.topic, stats.partition)
            batch_range = ranges_by_tp.get(tp)
            if batch_range is None or stats.first < batch_range.start or stats.last >= batch_range.end:
                raise PipelineError(
                    f"{tp}: Spark read offsets {stats.first} to {stats.last}, which are outside the batch; nothing of "
                    f"it is archived"
                )
