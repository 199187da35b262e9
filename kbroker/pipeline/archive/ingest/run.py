"""Archives topics until it is stopped, and restarts the streaming query after failures of the brokers."""

import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from kbroker.pipeline.archive.archive import Archive
from kbroker.pipeline.archive.ingest.batch_committer import BatchCommitter, IngestRun
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
from kbroker.pipeline.archive.ingest.streaming_query import QueryStart, run_query, subscribed_topics
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
