"""The Spark job of a batch: reads offsets of topics with Spark's Kafka source, and writes them as data files."""

import json
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from typing import TYPE_CHECKING, Any

from kbroker.common import TopicPartition
from kbroker.pipeline.cluster_admin import (
    BrokerUnavailableError,
    as_pipeline_errors,
    cluster_client,
    require_reachable,
)
from kbroker.pipeline.ingest.batch_plan import BatchRange
from kbroker.pipeline.ingest.cluster_retry import RunStopped, StopEvent
from kbroker.pipeline.ingest.exact_reading import read_exactly
from kbroker.pipeline.ingest.options import IngestOptions
from kbroker.pipeline.ingest.write_task import (
    EXPRESSIONS,
    RESULT_SCHEMA,
    TopicTarget,
    TopicWriter,
    WrittenFiles,
    read_result,
    write_files,
)
from kbroker.pipeline.security import kafka_options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# A large batch has more tasks than the topics have partitions, so that all cores are busy until its end.
TASK_RECORDS = 250_000
POLL_S = 0.2
REACHABILITY_CHECK_S = 5.0
CANCEL_S = 10.0
JOB_GROUP = "kbroker archive run"
# Spark sends records to Python in Arrow batches, which must fit into memory whatever the size of a record.
SETTINGS = {
    "spark.sql.execution.arrow.maxRecordsPerBatch": "20000",
    "spark.sql.execution.arrow.maxBytesPerBatch": str(8 << 20),
    "spark.sql.session.timeZone": "UTC",
}


class BatchJobs:
    """Runs the jobs of an ingest, one at a time, while it watches the brokers and requests to stop."""

    def __init__(self, spark: "SparkSession", options: IngestOptions, stop: StopEvent) -> None:
        self._session = spark.newSession()  # whose settings are its own
        for name, value in SETTINGS.items():
            self._session.conf.set(name, value)
        self._options = options
        self._stop = stop
        # Signals interrupt only the main thread, which waits.
        self._thread = ThreadPoolExecutor(1, "kbroker-job")

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    def write(
        self, ranges: Iterable[BatchRange], targets: Mapping[str, TopicTarget], committed_only: bool
    ) -> list[WrittenFiles]:
        """Write the records of these offsets that the logs still have, and return the files.

        Raises RunStopped if the stop event is set twice, BrokerUnavailableError if no broker was reachable for
        `broker_wait_s` seconds, and exceptions of Spark.
        """
        readable = [each for each in ranges if each.read_from < each.end]
        if not readable:
            return []
        options = self._source_options(readable, committed_only)
        task = partial(write_files, targets=targets, max_file_bytes=self._options.max_file_bytes)

        def run() -> list[WrittenFiles]:
            self._session.sparkContext.setJobGroup(JOB_GROUP, "reads records and writes files", interruptOnCancel=True)
            frame = self._session.read.format("kafka").options(**options).load().selectExpr(*EXPRESSIONS)
            return [read_result(*row) for row in frame.mapInArrow(task, RESULT_SCHEMA).collect()]

        return self._watch(self._thread.submit(run))

    def write_exactly(
        self, ranges: Iterable[BatchRange], targets: Mapping[str, TopicTarget], committed_only: bool
    ) -> list[WrittenFiles]:
        """Like `write`, for records that Spark does not read exactly; without Spark, on this machine."""
        ranges = list(ranges)
        if not ranges:
            return []
        options = self._options

        @as_pipeline_errors
        def run() -> list[WrittenFiles]:
            writers: dict[str, TopicWriter] = {}
            with cluster_client(options.bootstrap) as cluster:
                for planned in ranges:
                    topic = planned.tp.topic
                    if topic not in writers:
                        writers[topic] = TopicWriter(topic, targets[topic], options.max_file_bytes)
                    for rows, dead in read_exactly(cluster, planned, committed_only, time.time_ns() // 1_000_000):
                        writers[topic].add(rows)
                        writers[topic].add_dead_letters(dead)
            return [writer.close() for writer in writers.values()]

        return self._watch(self._thread.submit(run))

    def _source_options(self, ranges: Iterable[BatchRange], committed_only: bool) -> dict[str, str]:
        assignment: dict[str, list[int]] = {}
        for (topic, partition), _, _, _ in ranges:
            assignment.setdefault(topic, []).append(partition)
        return {
            **kafka_options(self._options.bootstrap),
            "assign": json.dumps(assignment),
            "startingOffsets": _encode_offsets({each.tp: each.read_from for each in ranges}),
            "endingOffsets": _encode_offsets({each.tp: each.end for each in ranges}),
            "includeHeaders": "true",
            # Spark would fail without saying which offsets are lost; the commit records them as gaps.
            "failOnDataLoss": "false",
            "kafka.isolation.level": "read_committed" if committed_only else "read_uncommitted",
            "kafka.reconnect.backoff.max.ms": "1000",
            "maxRecordsPerPartition": str(TASK_RECORDS),
        }

    def _watch(self, job: "Future[list[WrittenFiles]]") -> list[WrittenFiles]:
        last_reached_s = time.monotonic()
        next_check_s = last_reached_s + REACHABILITY_CHECK_S
        try:
            while not wait([job], POLL_S).done:
                if self._stop.count > 1:
                    raise RunStopped
                if time.monotonic() < next_check_s:
                    continue
                next_check_s = time.monotonic() + REACHABILITY_CHECK_S
                try:
                    require_reachable(self._options.bootstrap)
                    last_reached_s = time.monotonic()
                except BrokerUnavailableError:
                    if time.monotonic() - last_reached_s > self._options.broker_wait_s:
                        raise
            return job.result()
        finally:
            if not job.done():
                self._cancel(job)

    def _cancel(self, job: "Future[Any]") -> None:
        self._session.sparkContext.cancelJobGroup(JOB_GROUP)
        wait([job], CANCEL_S)


def compile_pattern(spark: "SparkSession", pattern: str) -> Callable[[str], Any]:
    """Compile a Java regular expression, as Kafka's own tools use. Raises IllegalArgumentException of pyspark."""
    jvm: Any = spark._jvm
    compiled = jvm.java.util.regex.Pattern.compile(pattern)
    return lambda name: bool(compiled.matcher(name).matches())


def _encode_offsets(offsets: Mapping[TopicPartition, int]) -> str:
    """Return the value of the options startingOffsets and endingOffsets: {"topic":{"0":17}}."""
    result: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in offsets.items():
        result.setdefault(topic, {})[str(partition)] = offset
    return json.dumps(result)
