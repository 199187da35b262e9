"""Runs the Spark streaming query until it ends, fails or is stopped."""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kbroker.pipeline.archive.ingest.batch_committer import BatchCommitter
from kbroker.pipeline.archive.ingest.options import IngestOptions
from kbroker.pipeline.archive.ingest.rate_limit import max_batch_records
from kbroker.pipeline.archive.ingest.stop import RunStopped, StopEvent
from kbroker.pipeline.archive.spark_offsets import encode_offsets
from kbroker.pipeline.cluster_admin import BrokerUnavailableError, require_reachable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# A large batch has more tasks than the topics have partitions, so that all cores are busy until its end.
TASK_RECORDS = 250_000
POLL_S = 0.2
REACHABILITY_CHECK_S = 5.0


def run_query(
    spark: "SparkSession",
    options: IngestOptions,
    committer: BatchCommitter,
    stop: StopEvent,
    on_poll: Callable[[], None],
) -> Exception | None:
    """Run the query to its end and return the exception that it failed with, if any.

    `on_poll` is called between polls of the query while no batch has failed. Raises RunStopped if the run was asked to
    stop, and BrokerUnavailableError if no broker was reachable for `broker_wait_s` seconds.
    """
    writer = _source(spark, options, committer).load().writeStream.foreachBatch(committer)
    writer = writer.option("checkpointLocation", committer.checkpoint.location)
    if options.once:
        writer = writer.trigger(availableNow=True)
    else:
        writer = writer.trigger(processingTime=f"{max(0, round(options.interval_s * 1000))} milliseconds")
    query = writer.start()
    try:
        _wait_for_end(query, options, committer, stop, on_poll)
    finally:
        query.stop()
        committer.cluster.close()
    failure: Exception | None = committer.failure or query.exception()
    if isinstance(failure, RunStopped) or (failure is not None and stop.count):
        raise RunStopped
    return failure


def _source(spark: "SparkSession", options: IngestOptions, committer: BatchCommitter) -> Any:
    metadata = committer.checkpoint.metadata
    name, value = options.subscription.spark_option
    max_records = max_batch_records(options.max_batch_records, options.rate, options.interval_s)
    source_options = {
        "kafka.bootstrap.servers": options.bootstrap,
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
    return spark.readStream.format("kafka").options(**source_options)


def _wait_for_end(
    query: Any, options: IngestOptions, committer: BatchCommitter, stop: StopEvent, on_poll: Callable[[], None]
) -> None:
    """Return when the query has ended, or must be stopped. Raises BrokerUnavailableError."""
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
