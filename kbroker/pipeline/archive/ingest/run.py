"""Archives topics until it is stopped.

The streaming query starts with the newest checkpoint, or a new one at the archive's offsets, and is restarted after
failures of the brokers.
"""

import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from kbroker.common import TopicPartition
from kbroker.pipeline.archive.archive import Archive
from kbroker.pipeline.archive.ingest.batch_committer import BatchCommitter, IngestRun, TopicFilter
from kbroker.pipeline.archive.ingest.batch_ranges import (
    RateLimit,
    TopicsChangedError,
    changed_topics,
    initial_gaps,
    max_batch_records,
    require_same_topics,
    require_single_run,
    require_untruncated_logs,
    resume_offsets,
)
from kbroker.pipeline.archive.ingest.checkpoint import (
    CheckpointDirectory,
    CheckpointGeneration,
    CheckpointMetadata,
    continues_archive,
)
from kbroker.pipeline.archive.ingest.cluster_retry import (
    FIRST_PAUSE_S,
    MAX_PAUSE_S,
    RetryingCluster,
    RunStopped,
    StopEvent,
    TopicObserver,
    is_transient,
)
from kbroker.pipeline.archive.ingest.options import IngestOptions, IngestSummary, Reporter, format_gap
from kbroker.pipeline.archive.layout import CHECKPOINT, encode_offsets
from kbroker.pipeline.archive.leftovers import remove_leftovers
from kbroker.pipeline.archive.manifest import ArchiveState, Gap, ManifestCommit, TopicInfo
from kbroker.pipeline.cluster_admin import BrokerUnavailableError, ClusterAdmin, all_partitions, require_reachable
from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.security import kafka_options
from kbroker.pipeline.spark.error_text import error_text, is_spark_error
from kbroker.pipeline.storage.storage import Storage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def archive_topics(
    spark: "SparkSession",
    storage: Storage,
    options: IngestOptions,
    stop: StopEvent,
    reporter: Reporter,
    checkpoint: Storage | None = None,
) -> IngestSummary:
    """Archive topics until `stop` is set or, with `once`, up to the current ends of the logs.

    `checkpoint` is a directory for Spark's checkpoint, by default one within the archive. If it raises PipelineError,
    earlier commits remain.
    """
    pattern = options.subscription.pattern
    matches = None if pattern is None else _compile_pattern(spark, pattern)
    with ClusterAdmin(options.bootstrap) as admin:
        subscribed_topics(admin, options, matches)  # fails before a directory is created
    archive = open_archive(storage, options.committed_only)
    archive_id = str(archive.state().settings.get("id", ""))
    checkpoints = CheckpointDirectory(*((storage, CHECKPOINT) if checkpoint is None else (checkpoint, "")), archive_id)
    rate_limit = RateLimit(options.rate) if options.rate else None
    summary = IngestSummary(last_commit=archive.state().commit_number)
    run = IngestRun(spark, archive, checkpoints, options, matches, stop, reporter, rate_limit, summary)
    cluster, observer = run.new_cluster(), TopicObserver(options.bootstrap, storage, options.observe_interval_s)
    try:
        with suppress(RunStopped):
            _run_queries(run, cluster, observer)
        _observe(run, observer)
    except Exception as error:
        # Ctrl-C also ends Spark's JVM. The interrupted batch is repeated by the next run.
        if not (stop.count and (is_spark_error(error) or isinstance(error, ConnectionError))):
            raise
    finally:
        observer.close()
        cluster.close()
    return summary


def open_archive(storage: Storage, committed_only: bool) -> Archive:
    """Open or create the archive to write to. Raises PipelineError if it was created with another `committed_only`."""
    archive = Archive.open_or_create(storage, {"committed_only": committed_only})
    is_committed_only = bool(archive.state().settings.get("committed_only"))
    if is_committed_only != committed_only:
        created, do = ("with", "add") if is_committed_only else ("without", "omit")
        raise PipelineError(
            f"{storage.root} was created {created} --committed-only: {do} this option, or choose another directory"
        )
    remove_leftovers(archive)
    return archive


def _observe(run: IngestRun, observer: TopicObserver) -> None:
    """Archive topic configs and group offsets. The broker may deny it, which does not affect the records."""
    try:
        run.summary.last_commit = max(run.summary.last_commit, observer.observe())
    except PipelineError as error:
        run.reporter.warn(f"topic configs and group offsets are not archived this time: {error}")


def _run_queries(run: IngestRun, cluster: RetryingCluster, observer: TopicObserver) -> None:
    """Run the query, and restart it after transient failures until it makes no progress for `broker_wait_s`."""
    query_start = QueryStart(run, cluster)
    pause_s, deadline = FIRST_PAUSE_S, time.monotonic() + run.options.broker_wait_s
    while not run.stop.count:
        committer = BatchCommitter(run, query_start.choose_checkpoint())
        failure = run_query(committer, lambda: _observe(run, observer) if observer.is_due else None)
        if failure is None:
            return
        if committer.finished_batches:
            pause_s, deadline = FIRST_PAUSE_S, time.monotonic() + run.options.broker_wait_s
        can_restart = isinstance(failure, TopicsChangedError) or is_transient(failure)
        if not can_restart or time.monotonic() > deadline:
            if is_spark_error(failure):
                raise PipelineError(_message(failure)) from failure
            raise failure
        run.reporter.warn(f"restarting the query: {_message(failure)}")
        run.stop.wait(pause_s)
        pause_s = min(MAX_PAUSE_S, pause_s * 2)


def _compile_pattern(spark: "SparkSession", pattern: str) -> Callable[[str], bool]:
    """Compile a Java regular expression, because Spark's Kafka source matches topics with Java."""
    from pyspark.errors import IllegalArgumentException

    jvm: Any = spark._jvm
    try:
        compiled = jvm.java.util.regex.Pattern.compile(pattern)
    except IllegalArgumentException as error:
        reason = str(error).partition("\n")[0]
        raise PipelineError(f"--pattern {pattern} is not a regular expression: {reason}") from None
    return lambda name: bool(compiled.matcher(name).matches())


def _message(error: BaseException) -> str:
    return str(error) if isinstance(error, PipelineError) else error_text(error)


_TOPIC_POLL_S = 1.0


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


class QueryStart:
    """Chooses the checkpoint of the next streaming query."""

    def __init__(self, run: IngestRun, cluster: RetryingCluster) -> None:
        self._run = run
        self._cluster = cluster

    def choose_checkpoint(self) -> CheckpointGeneration:
        """Return the newest checkpoint if it continues the archive, or else create one.

        Offsets that were deleted before they could be archived are committed as gaps first. Raises PipelineError if the
        topics or their logs are not those that were archived.
        """
        topics = self._wait_for_topics()
        state = self._run.archive.state()
        require_same_topics(state, topics)
        newest = self._run.checkpoints.newest()
        partitions = all_partitions(topics)
        expected = self._expected_offsets(state, partitions, newest)
        resume = {tp: offset for tp, offset in resume_offsets(state).items() if tp in expected}
        committed_only = self._run.options.committed_only
        log_starts, _ = self._cluster.call_until_valid(
            lambda cluster: (cluster.beginning_offsets(partitions), cluster.end_offsets(partitions, committed_only)),
            lambda offsets: require_untruncated_logs(resume, offsets[1]),
        )
        self._commit_gaps(state, initial_gaps(expected, log_starts), topics)
        starts = {tp: max(offset, log_starts[tp]) for tp, offset in expected.items()}
        if newest is not None and self._can_continue(newest, starts):
            return newest
        archive_id, query_id = str(state.settings.get("id", "")), str(uuid.uuid4())
        return self._run.checkpoints.create(
            CheckpointMetadata(archive_id, query_id, self._run.options.subscription, committed_only, starts)
        )

    def _wait_for_topics(self) -> Mapping[str, TopicInfo]:
        while True:
            topics = self._cluster.call(
                lambda cluster: subscribed_topics(cluster, self._run.options, self._run.matches)
            )
            if topics:
                return topics
            self._run.stop.wait(_TOPIC_POLL_S)

    def _expected_offsets(
        self, state: ArchiveState, partitions: Sequence[TopicPartition], newest: CheckpointGeneration | None
    ) -> dict[TopicPartition, int]:
        """Return the offset at which each partition continues or starts."""
        resume = resume_offsets(state)
        expected = {tp: resume[tp] for tp in partitions if tp in resume}
        if newest is not None:  # it may contain partitions that have no records yet
            starts = newest.metadata.starts
            expected |= {tp: starts[tp] for tp in partitions if tp in starts and tp not in expected}
        # A partition that was added to a topic later is read completely, regardless of the topic's start offsets.
        known_topics = {tp.topic for tp in expected} | {tp.topic for tp in resume}
        expected |= {tp: 0 for tp in partitions if tp not in expected and tp.topic in known_topics}
        return expected | self._start_offsets([tp for tp in partitions if tp not in expected])

    def _start_offsets(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the start offsets of partitions whose topics are new to the archive."""
        start, committed_only = self._run.options.start, self._run.options.committed_only
        if start.kind == "latest" and partitions:
            return self._cluster.call(lambda cluster: cluster.end_offsets(partitions, committed_only))
        if start.kind == "time" and partitions:
            return self._cluster.call(lambda cluster: cluster.offsets_for_time(partitions, start.time_ms))
        return dict.fromkeys(partitions, 0)

    def _commit_gaps(self, state: ArchiveState, gaps: Sequence[Gap], topics: Mapping[str, TopicInfo]) -> None:
        if not gaps:
            return
        resume = resume_offsets(state)
        names = {gap.topic for gap in gaps}

        def build(current: ArchiveState) -> ManifestCommit:
            require_single_run(resume, current, [TopicPartition(gap.topic, gap.partition) for gap in gaps])
            changed = changed_topics(current, {name: info for name, info in topics.items() if name in names})
            return ManifestCommit("append", time.time_ns() // 1_000_000, gaps=tuple(gaps), topics=changed)

        self._run.summary.last_commit = self._run.archive.commit(build).commit_number
        self._run.summary.gaps += gaps
        for gap in gaps:
            self._run.reporter.warn(format_gap(gap))

    def _can_continue(self, checkpoint: CheckpointGeneration, starts: Mapping[TopicPartition, int]) -> bool:
        metadata, options = checkpoint.metadata, self._run.options
        if (metadata.subscription, metadata.committed_only) != (options.subscription, options.committed_only):
            return False
        try:
            return continues_archive(checkpoint.next_batch(), starts)
        except PipelineError as error:
            self._run.reporter.warn(f"{error}; continuing from what the archive contains")
            return False


# A large batch has more tasks than the topics have partitions, so that all cores are busy until its end.
TASK_RECORDS = 250_000
POLL_S = 0.2
REACHABILITY_CHECK_S = 5.0


def run_query(committer: BatchCommitter, on_poll: Callable[[], None]) -> Exception | None:
    """Run the query to its end and return the exception that it failed with, if any.

    `on_poll` is called between polls of the query while no batch has failed. Raises RunStopped if the run was asked to
    stop, and BrokerUnavailableError if no broker was reachable for `broker_wait_s` seconds.
    """
    run, checkpoint = committer.run, committer.checkpoint
    writer = _source(run, checkpoint.metadata).load().writeStream.foreachBatch(committer)
    writer = writer.option("checkpointLocation", checkpoint.location)
    if run.options.once:
        writer = writer.trigger(availableNow=True)
    else:
        writer = writer.trigger(processingTime=f"{max(0, round(run.options.interval_s * 1000))} milliseconds")
    query = writer.start()
    try:
        _wait_for_end(query, committer, on_poll)
    finally:
        query.stop()
        committer.cluster.close()
    failure: Exception | None = committer.failure or query.exception()
    if isinstance(failure, RunStopped) or (failure is not None and run.stop.count):
        raise RunStopped
    return failure


def _source(run: IngestRun, metadata: CheckpointMetadata) -> Any:
    options = run.options
    name, value = options.subscription.spark_option
    max_records = max_batch_records(options.max_batch_records, options.rate, options.interval_s)
    source_options = {
        **kafka_options(options.bootstrap),
        name: value,
        "includeHeaders": "true",
        "startingOffsets": encode_offsets(metadata.starts),
        # Spark would fail without saying which offsets are lost; BatchCommitter records them as gaps.
        "failOnDataLoss": "false",
        "kafka.isolation.level": "read_committed" if options.committed_only else "read_uncommitted",
        "kafka.reconnect.backoff.max.ms": "1000",
        "maxRecordsPerPartition": str(TASK_RECORDS),
    }
    if max_records is not None:
        source_options["maxOffsetsPerTrigger"] = str(max_records)
    return run.spark.readStream.format("kafka").options(**source_options)


def _wait_for_end(query: Any, committer: BatchCommitter, on_poll: Callable[[], None]) -> None:
    """Return when the query has ended, or must be stopped. Raises BrokerUnavailableError."""
    options, stop = committer.run.options, committer.run.stop
    last_reached_s = time.monotonic()
    next_check_s = last_reached_s + REACHABILITY_CHECK_S
    while not _has_ended(query):
        if stop.count > 1 or (stop.count and not committer.is_busy):
            return
        if committer.failure is None:
            on_poll()
        if time.monotonic() < next_check_s:
            continue
        next_check_s = time.monotonic() + REACHABILITY_CHECK_S
        try:
            require_reachable(options.bootstrap)
            last_reached_s = time.monotonic()
        except BrokerUnavailableError:
            if time.monotonic() - last_reached_s > options.broker_wait_s:
                raise


def _has_ended(query: Any) -> bool:
    """Wait POLL_S for the query's end. Its exception is read later."""
    from pyspark.errors import StreamingQueryException

    try:
        return bool(query.awaitTermination(POLL_S))
    except StreamingQueryException:
        return True
