"""Archives topics until it is stopped, and restarts the streaming query after failures of the brokers."""

import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from kbroker.pipeline.archive.archive import Archive
from kbroker.pipeline.archive.ingest.batch_committer import BatchCommitter
from kbroker.pipeline.archive.ingest.batch_ranges import RateLimit, TopicsChangedError
from kbroker.pipeline.archive.ingest.checkpoint import CheckpointDirectory
from kbroker.pipeline.archive.ingest.cluster_retry import (
    FIRST_PAUSE_S,
    MAX_PAUSE_S,
    RetryingCluster,
    RunStopped,
    StopEvent,
    TopicObserver,
    is_transient,
)
from kbroker.pipeline.archive.ingest.options import IngestOptions, IngestSummary, Reporter
from kbroker.pipeline.archive.ingest.streaming_query import QueryStart, TopicFilter, run_query, subscribed_topics
from kbroker.pipeline.archive.layout import CHECKPOINT
from kbroker.pipeline.archive.leftovers import remove_leftovers
from kbroker.pipeline.cluster_admin import ClusterAdmin
from kbroker.pipeline.errors import PipelineError
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
    cluster = ClusterAdmin(options.bootstrap)
    try:
        subscribed_topics(cluster, options, matches)  # fails before a directory is created
    finally:
        cluster.close()
    archive = open_archive(storage, options.committed_only)
    archive_id = str(archive.state().settings.get("id", ""))
    checkpoints = CheckpointDirectory(*((storage, CHECKPOINT) if checkpoint is None else (checkpoint, "")), archive_id)
    return _Run(spark, archive, checkpoints, options, matches, stop, reporter).run()


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


class _Run:
    """One run from start to end."""

    def __init__(
        self,
        spark: "SparkSession",
        archive: Archive,
        checkpoints: CheckpointDirectory,
        options: IngestOptions,
        matches: TopicFilter | None,
        stop: StopEvent,
        reporter: Reporter,
    ) -> None:
        self._spark = spark
        self._archive = archive
        self._options = options
        self._stop = stop
        self._reporter = reporter
        self._cluster = self._new_cluster()
        self._rate_limit = RateLimit(options.rate) if options.rate else None
        self._summary = IngestSummary(last_commit=archive.state().commit_number)
        self._query_start = QueryStart(
            archive, checkpoints, self._cluster, options, matches, stop, reporter, self._summary
        )
        self._observer = TopicObserver(options.bootstrap, archive.storage, options.observe_interval_s)

    def _new_cluster(self) -> RetryingCluster:
        return RetryingCluster(self._options.bootstrap, self._options.broker_wait_s, self._stop, self._reporter.warn)

    def run(self) -> IngestSummary:
        try:
            with suppress(RunStopped):
                self._run_queries()
            self._observe()
        except Exception as error:
            # Ctrl-C also ends Spark's JVM. The interrupted batch is repeated by the next run.
            if not (self._stop.count and (is_spark_error(error) or isinstance(error, ConnectionError))):
                raise
        finally:
            self._observer.close()
            self._cluster.close()
        return self._summary

    def _observe(self) -> None:
        """Archive topic configs and group offsets. The broker may deny it, which does not affect the records."""
        try:
            self._summary.last_commit = max(self._summary.last_commit, self._observer.observe())
        except PipelineError as error:
            self._reporter.warn(f"topic configs and group offsets are not archived this time: {error}")

    def _observe_if_due(self) -> None:
        if self._observer.is_due:
            self._observe()

    def _run_queries(self) -> None:
        """Run the query, and restart it after transient failures until it makes no progress for `broker_wait_s`."""
        pause_s, deadline = FIRST_PAUSE_S, time.monotonic() + self._options.broker_wait_s
        while not self._stop.count:
            committer = self._new_committer()
            failure = run_query(self._spark, self._options, committer, self._stop, self._observe_if_due)
            if failure is None:
                return
            if committer.finished_batches:
                pause_s, deadline = FIRST_PAUSE_S, time.monotonic() + self._options.broker_wait_s
            can_restart = isinstance(failure, TopicsChangedError) or is_transient(failure)
            if not can_restart or time.monotonic() > deadline:
                if is_spark_error(failure):
                    raise PipelineError(_message(failure)) from failure
                raise failure
            self._reporter.warn(f"restarting the query: {_message(failure)}")
            self._stop.wait(pause_s)
            pause_s = min(MAX_PAUSE_S, pause_s * 2)

    def _new_committer(self) -> BatchCommitter:
        return BatchCommitter(
            self._spark,
            self._archive,
            self._query_start.choose_checkpoint(),
            self._new_cluster(),  # a separate connection, because Spark calls the committer in another thread
            self._stop,
            self._rate_limit,
            self._reporter,
            self._summary,
        )


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
