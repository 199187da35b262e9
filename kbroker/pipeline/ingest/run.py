"""Archives topics until it is stopped, batch by batch.

Each batch is planned from what the tables contain and what the logs have now: a Spark job writes files, and one commit
for each topic adds them to its table with the offsets that they cover. Nothing else records progress, so whatever is
killed, the next batch continues where the tables end.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kbroker.archive.archive import Archive
from kbroker.archive.catalogs import DATABASE, TOPICS, create_archive
from kbroker.archive.errors import ArchiveError
from kbroker.pipeline.cluster_admin import ClusterAdmin
from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.ingest.batch_plan import TopicsChangedError
from kbroker.pipeline.ingest.batches import Batches, subscribed_topics
from kbroker.pipeline.ingest.cluster_retry import FIRST_PAUSE_S, MAX_PAUSE_S, RunStopped, StopEvent, is_transient
from kbroker.pipeline.ingest.metrics import serve_metrics
from kbroker.pipeline.ingest.options import IngestOptions, IngestSummary, Reporter
from kbroker.pipeline.ingest.spark_job import compile_pattern
from kbroker.pipeline.spark.error_text import error_text, is_spark_error

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def archive_topics(
    spark: "SparkSession", location: str, options: IngestOptions, stop: StopEvent, reporter: Reporter
) -> IngestSummary:
    """Archive topics until `stop` is set or, with `once`, up to the current ends of the logs.

    If it raises ArchiveError, earlier commits remain.
    """
    matches = None if options.subscription.pattern is None else _pattern_filter(spark, options.subscription.pattern)
    with ClusterAdmin(options.bootstrap) as admin:
        subscribed_topics(admin, options, matches)  # fails before a directory is created
    batches = Batches(spark, open_for_writing(location, options), options, matches, stop, reporter)
    try:
        with serve_metrics(batches.summary, options.metrics):
            with suppress(RunStopped):
                _run_batches(batches, options, stop, reporter)
            batches.finish()
    except Exception as error:
        # Ctrl-C also ends Spark's JVM. The interrupted batch is repeated by the next run.
        if not (stop.count and (is_spark_error(error) or isinstance(error, ConnectionError))):
            raise
    finally:
        batches.close()
    return batches.summary


def open_for_writing(location: str, options: IngestOptions) -> Archive:
    """Open or create the archive. Raises ArchiveError if it was created with other settings, or is something else."""
    if "://" not in location and not location.startswith("catalog:"):
        _require_archive_or_empty(Path(location))
    settings = {"committed_only": options.committed_only is not False, "period": options.period or "day"}
    archive = create_archive(location, settings, options.catalog)
    if options.committed_only not in (None, archive.settings.committed_only):
        created = "--committed-only" if archive.settings.committed_only else "--all-records"
        raise PipelineError(f"{archive.location} was created with {created}: omit the option, or use another directory")
    if options.period is not None and archive.settings.period != options.period:
        raise PipelineError(f"{archive.location} was created with --partition-by {archive.settings.period}")
    return archive


def _require_archive_or_empty(directory: Path) -> None:
    if not directory.is_dir() or (directory / DATABASE).exists() or (directory / f"{TOPICS}.json").exists():
        return
    others = sorted(path.name for path in directory.iterdir() if path.name != "lost+found")
    if "_manifest" in others:
        raise PipelineError(f"{directory} has the format of an older version: convert it with kbroker archive convert")
    if others:
        raise PipelineError(
            f"{directory} is not an archive and not empty (it contains {others[0]}); choose a new or an empty directory"
        )


def _run_batches(batches: Batches, options: IngestOptions, stop: StopEvent, reporter: Reporter) -> None:
    """Archive one batch after the other, and repeat after transient failures, for at most `broker_wait_s`."""
    pause_s, deadline = FIRST_PAUSE_S, time.monotonic() + options.broker_wait_s
    while not stop.count:
        start_s = time.monotonic()
        try:
            is_complete = batches.archive_next()
        except Exception as error:
            can_repeat = isinstance(error, TopicsChangedError) or is_transient(error)
            if isinstance(error, RunStopped) or not can_repeat or time.monotonic() > deadline:
                if is_spark_error(error):
                    raise PipelineError(_message(error)) from error
                raise
            batches.summary.errors += 1
            reporter.warn(f"repeating the batch: {_message(error)}")
            batches.forget()
            stop.wait(pause_s)
            pause_s = min(MAX_PAUSE_S, pause_s * 2)
            continue
        pause_s, deadline = FIRST_PAUSE_S, time.monotonic() + options.broker_wait_s
        if is_complete and options.once:
            return
        if is_complete:
            batches.wait_until(start_s + options.interval_s)


def _pattern_filter(spark: "SparkSession", pattern: str) -> Callable[[str], Any]:
    from pyspark.errors import IllegalArgumentException

    try:
        return compile_pattern(spark, pattern)
    except IllegalArgumentException as error:
        reason = str(error).partition("\n")[0]
        raise PipelineError(f"--pattern {pattern} is not a regular expression: {reason}") from None


def _message(error: BaseException) -> str:
    return str(error) if isinstance(error, ArchiveError) else error_text(error)
