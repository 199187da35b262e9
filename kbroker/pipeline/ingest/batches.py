"""Archives one batch: the plan, the Spark job, and the commits to the tables of its topics."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from kbroker.archive.archive import Archive
from kbroker.archive.data_files import DataFile
from kbroker.archive.decoding.decoder import MissingSchema
from kbroker.archive.offset_ranges import OffsetRange, ranges_of, subtract_ranges
from kbroker.archive.topic_state import Gap, LeaderEpoch, TopicInfo, TopicState
from kbroker.common import TopicPartition
from kbroker.pipeline.cluster_admin import ClusterAdmin, all_partitions
from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.ingest.batch_plan import (
    BatchRange,
    LogBounds,
    RateLimit,
    TopicsChangedError,
    WrittenOffsets,
    gaps_of,
    lost_ranges,
    max_batch_records,
    missing_offsets,
    needs_row_search,
    plan_batch,
    require_same_topic,
    require_single_run,
    require_untruncated_logs,
    require_within,
    resume_offsets,
)
from kbroker.pipeline.ingest.cluster_retry import RetryingCluster, StopEvent, is_overflow
from kbroker.pipeline.ingest.leader_epochs import last_epochs, read_new_epochs, require_same_logs, with_epochs
from kbroker.pipeline.ingest.maintenance import Maintenance
from kbroker.pipeline.ingest.observer import TopicObserver, with_observation
from kbroker.pipeline.ingest.options import IngestOptions, IngestSummary, Reporter, format_gap
from kbroker.pipeline.ingest.spark_job import BatchJobs
from kbroker.pipeline.ingest.topic_tables import TableCommit, TopicTables
from kbroker.pipeline.ingest.write_task import WrittenFiles

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TopicFilter = Callable[[str], bool]


class _Logs(NamedTuple):
    """The topics of a batch and their logs, read after the records."""

    topics: Mapping[str, TopicInfo]
    offsets: LogBounds
    epochs: Mapping[TopicPartition, Sequence[LeaderEpoch]]  # those that the archive does not have


class Batches:
    """The batches of one run. Used by one thread."""

    def __init__(
        self,
        spark: "SparkSession",
        archive: Archive,
        options: IngestOptions,
        matches: TopicFilter | None,
        stop: StopEvent,
        reporter: Reporter,
    ) -> None:
        """`matches` is the compiled pattern of the topics."""
        self.summary = IngestSummary()
        self._options = options
        self._committed_only = archive.settings.committed_only
        self._matches = matches
        self._stop = stop
        self._reporter = reporter
        self._tables = TopicTables(archive, options.decode, options.registry_url)
        self._cluster = RetryingCluster(options.bootstrap, options.broker_wait_s, stop, reporter.warn)
        self._jobs = BatchJobs(spark, options, stop)
        self._admin = ClusterAdmin(options.bootstrap)
        self._observer = TopicObserver(self._admin, self._tables, options.observe_interval_s)
        self._maintenance = Maintenance(self._tables, reporter, stop, options.keep_ms)
        self._rate_limit = RateLimit(options.rate) if options.rate else None
        self._checked_logs: set[TopicPartition] = set()
        self._last_ends: Mapping[TopicPartition, int] | None = None  # with `once`: where to stop

    def close(self) -> None:
        self._jobs.close()
        self._cluster.close()
        self._admin.close()

    def forget(self) -> None:
        """Read the states of tables and logs again: a commit may have succeeded although it failed."""
        self._tables.forget()
        self._checked_logs.clear()

    def wait_until(self, time_s: float) -> None:
        """Wait until this monotonic time; observe topics and maintain tables meanwhile. Raises RunStopped."""
        if self._observer.is_due:
            self.observe()
        self._maintenance.run(time_s)
        self._stop.wait(max(0.0, time_s - time.monotonic()))

    def finish(self) -> None:
        """Do at the end of a run what is due."""
        self.observe(is_last=True)
        self._maintenance.run(float("inf"))

    def observe(self, is_last: bool = False) -> None:
        """Archive topic configs and group offsets. The broker may deny it, which does not affect the records."""
        try:
            self._observer.observe(is_last)
        except PipelineError as error:
            self._reporter.warn(f"topic configs and group offsets are not archived this time: {error}")

    def archive_next(self) -> bool:
        """Archive the next batch, if there are new offsets. Return whether the batch reached the ends of the logs.

        Raises ArchiveError if the topics or their logs are not those that were archived.
        """
        topics = self._cluster.call(lambda cluster: subscribed_topics(cluster, self._options, self._matches))
        states = self._begin_topics(topics)
        resume = resume_offsets(states)
        logs = self._read_offsets(all_partitions(topics), resume)
        self._require_same_logs(states, resume, logs)
        limit = max_batch_records(self._options.max_batch_records, self._options.rate, self._options.interval_s)
        ranges = plan_batch(resume, logs, limit)
        self.summary.set_lags(missing_offsets(resume, logs))
        if ranges:
            self._wait_for_rate(ranges)
            self._archive(states, ranges)
            self.summary.set_lags(missing_offsets(resume | {each.tp: each.end for each in ranges}, logs))
        return all(logs.ends[each.tp] == each.end for each in ranges)

    def _begin_topics(self, topics: Mapping[str, TopicInfo]) -> dict[str, TopicState]:
        """Return the states of topics. New topics get a table, which records where they start."""
        states = self._tables.load(topics)
        for name, info in topics.items():
            require_same_topic(name, states[name].topic, info)
        new = {name: info for name, info in topics.items() if states[name].topic is None}
        if not new:
            return states
        starts = self._start_offsets(all_partitions(new))

        def begin(name: str, info: TopicInfo) -> TableCommit:
            # An empty range says where the archive of a partition begins.
            empty = {tp.partition: (OffsetRange(at, at),) for tp, at in starts.items() if tp.topic == name}
            return TableCommit(
                name,
                lambda state: None if state.topic else replace(state, topic=info, covered=empty | dict(state.covered)),
            )

        self._tables.commit("observe", [begin(name, info) for name, info in new.items()])
        return self._tables.load(topics)

    def _start_offsets(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the offsets at which new topics start. Later partitions of a topic are read from their beginning."""
        start = self._options.start
        if start.kind == "latest":
            return self._cluster.call(lambda cluster: cluster.end_offsets(partitions, self._committed_only))
        if start.kind == "time":
            return self._cluster.call(lambda cluster: cluster.offsets_for_time(partitions, start.time_ms))
        return {}

    def _read_offsets(self, partitions: Sequence[TopicPartition], resume: Mapping[TopicPartition, int]) -> LogBounds:
        """Return the offsets of the logs; with `once`, none that are above the ends at the beginning of the run."""
        known = {tp: resume[tp] for tp in partitions if tp in resume}

        def request(cluster: ClusterAdmin) -> LogBounds:
            starts = cluster.beginning_offsets(partitions)
            return LogBounds(starts, cluster.end_offsets(partitions, self._committed_only))

        logs = self._cluster.call_until_valid(request, lambda logs: require_untruncated_logs(known, logs.ends))
        if not self._options.once:
            return logs
        if self._last_ends is None:
            self._last_ends = logs.ends
        last = self._last_ends
        return logs._replace(ends={tp: min(end, last[tp]) for tp, end in logs.ends.items() if tp in last})

    def _require_same_logs(
        self, states: Mapping[str, TopicState], resume: Mapping[TopicPartition, int], logs: LogBounds
    ) -> None:
        """Raise PipelineError if a log has diverged from its archive. Each is checked once, and after failures."""
        unchecked = [tp for tp in logs.ends if tp not in self._checked_logs]
        epochs = last_epochs(states)
        asked = {tp: epochs[tp].epoch for tp in unchecked if tp in epochs}
        ends = self._cluster.call(lambda cluster: cluster.epoch_ends(asked))
        require_same_logs(epochs, resume, ends)
        self._checked_logs.update(unchecked)

    def _wait_for_rate(self, ranges: Iterable[BatchRange]) -> None:
        limit = self._rate_limit
        if limit is not None:
            self._stop.wait(limit.delay_s(time.monotonic()))
            limit.record_batch(sum(each.end - each.read_from for each in ranges), time.monotonic())

    def _archive(self, states: Mapping[str, TopicState], ranges: Sequence[BatchRange]) -> None:
        start_s = time.monotonic()
        names = sorted({each.tp.topic for each in ranges})
        written = self._write(ranges)
        files: dict[str, list[DataFile]] = {name: [] for name in names}
        dead_letters: dict[str, list[DataFile]] = {}
        for result in written:
            files[result.topic] += result.files
            if result.dead_letters:
                dead_letters.setdefault(result.topic, []).extend(result.dead_letters)
        offsets = [
            WrittenOffsets(TopicPartition(name, file.partition), file.first, file.last)
            for name, listed in files.items()
            for file in listed
        ]
        require_within(offsets, ranges)
        logs = self._read_logs(states, names, ranges)
        lost = self._find_lost(files, offsets, ranges, logs.offsets.starts)
        gaps = {
            name: [gap for each in ranges if each.tp.topic == name for gap in gaps_of(each.tp.partition, lost[each.tp])]
            for name in names
        }
        self._tables.commit_dead_letters(dead_letters)
        self._tables.commit(
            "append",
            [self._commit_of(name, states[name], ranges, lost, gaps[name], files[name], logs) for name in names],
        )
        self.summary.record_bytes += sum(result.record_bytes for result in written)
        self.summary.add_dead_letters(dead_letters)
        self._report(files, gaps, time.monotonic() - start_s)

    def _write(self, ranges: Sequence[BatchRange]) -> list[WrittenFiles]:
        """Write the records of a batch.

        Those of topics with schemas that their table does not have are written again when it has them, and those with
        timestamps that Spark does not hold are read again without Spark.
        """
        result: list[WrittenFiles] = []
        exact: set[str] = set()  # topics
        while ranges:
            targets = self._tables.write_targets({each.tp.topic for each in ranges})
            try:
                written = self._jobs.write(
                    [each for each in ranges if each.tp.topic not in exact], targets, self._committed_only
                )
            except Exception as error:
                if not is_overflow(error):
                    raise
                written = [WrittenFiles(topic, is_inexact=True) for topic in targets if topic not in exact]
            written += self._jobs.write_exactly(
                [each for each in ranges if each.tp.topic in exact], targets, self._committed_only
            )
            missing: dict[str, set[MissingSchema]] = {}
            for files in written:
                if files.missing:
                    missing.setdefault(files.topic, set()).update(files.missing)
            for topic, schemas in missing.items():
                self._tables.learn_schemas(topic, schemas)
            inexact = {files.topic for files in written if files.is_inexact}
            self._tables.require_dead_letters(inexact)
            exact |= inexact
            again = inexact | set(missing)
            result += [files for files in written if files.topic not in again]
            ranges = [each for each in ranges if each.tp.topic in again]
        return result

    def _commit_of(
        self,
        name: str,
        before: TopicState,
        ranges: Sequence[BatchRange],
        lost: Mapping[TopicPartition, Sequence[OffsetRange]],
        gaps: Sequence[Gap],
        files: Sequence[DataFile],
        logs: _Logs,
    ) -> TableCommit:
        of_topic = [each for each in ranges if each.tp.topic == name]
        covered = [
            (each.tp.partition, kept)
            for each in of_topic
            for kept in subtract_ranges([OffsetRange(each.start, each.end)], lost[each.tp])
        ]
        epochs = {each.tp.partition: logs.epochs.get(each.tp, ()) for each in of_topic}
        observed = self._observer.take(name)

        def build(state: TopicState) -> TopicState:
            require_single_run(name, before, state, [each.tp.partition for each in of_topic])
            state = with_observation(state, observed).with_covered(covered, gaps)
            return replace(state, topic=logs.topics[name], leader_epochs=with_epochs(state, epochs))

        return TableCommit(name, build, files)

    def _read_logs(self, states: Mapping[str, TopicState], names: Sequence[str], ranges: Sequence[BatchRange]) -> _Logs:
        """Return topics and offsets, requested after the records were read.

        If the topic ids have not changed since the last commit, the records belong to these topics.
        """
        partitions = [each.tp for each in ranges]
        known = last_epochs(states)

        def request(cluster: ClusterAdmin) -> _Logs:
            topics = cluster.describe_topics(names)
            if len(topics) < len(names):
                deleted = ", ".join(sorted(set(names) - set(topics)))
                raise TopicsChangedError(f"topics were deleted while they were archived: {deleted}")
            ends = cluster.end_offsets(partitions, self._committed_only)
            offsets = LogBounds(cluster.beginning_offsets(partitions), ends)
            return _Logs(topics, offsets, read_new_epochs(cluster, ranges, known))

        read_ends = {each.tp: each.end for each in ranges}
        logs = self._cluster.call_until_valid(
            request, lambda logs: require_untruncated_logs(read_ends, logs.offsets.ends)
        )
        for name, info in logs.topics.items():
            require_same_topic(name, states[name].topic, info)
        return logs

    def _find_lost(
        self,
        files: Mapping[str, Sequence[DataFile]],
        written: Sequence[WrittenOffsets],
        ranges: Iterable[BatchRange],
        log_starts: Mapping[TopicPartition, int],
    ) -> dict[TopicPartition, tuple[OffsetRange, ...]]:
        """Return the offsets of the batch that retention deleted before Spark read them."""
        lost = {}
        for each in ranges:
            log_start, missing = log_starts[each.tp], None
            if needs_row_search(each, log_start, written):
                of_partition = [file for file in files[each.tp.topic] if file.partition == each.tp.partition]
                rows = ranges_of(self._tables.read_offsets(each.tp.topic, of_partition))
                missing = subtract_ranges([OffsetRange(each.start, each.end)], rows)
            lost[each.tp] = lost_ranges(each, log_start, missing)
        return lost

    def _report(
        self, files: Mapping[str, Sequence[DataFile]], gaps: Mapping[str, Sequence[Gap]], seconds: float
    ) -> None:
        self.summary.batches += 1
        for topic, listed in files.items():
            self.summary.add_files(topic, listed)
        for topic, of_topic in gaps.items():
            if of_topic:
                self.summary.gaps.setdefault(topic, []).extend(of_topic)
            for gap in of_topic:
                self._reporter.warn(format_gap(topic, gap))
        written = [file for listed in files.values() for file in listed]
        records, size = sum(file.rows for file in written), sum(file.size for file in written)
        rate = f"{records / seconds:,.0f} records/s" if seconds > 0 else ""
        self._reporter.progress(
            f"batch {self.summary.batches}: {records:,} records in {len(written)} files of {size:,} bytes in "
            f"{seconds:.1f} s ({rate})"
        )


def subscribed_topics(
    cluster: ClusterAdmin, options: IngestOptions, matches: TopicFilter | None
) -> Mapping[str, TopicInfo]:
    """Return the topics to archive. Raises PipelineError if a named topic does not exist.

    `matches` is the compiled pattern. No match is an error only with --once: topics may be created later.
    """
    if matches is None:
        return cluster.require_topics(options.subscription.topics)
    topics = cluster.describe_topics(matches=matches)
    if not topics and options.once:
        raise PipelineError(f"no topic matches --pattern {options.subscription.pattern}")
    return topics
