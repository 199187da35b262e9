"""Runs an aggregate as a streaming query: checks, start, report of each batch, end.

Results are upserts, so repeating a batch after a crash changes nothing. For each window and group that a batch changes,
a topic gets a record whose key is the window and the group, and Parquet files get a row that replaces the earlier one
(see result_files).
"""

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

from kbroker.archive.errors import ArchiveError
from kbroker.archive.storage import open_storage
from kbroker.archive.topic_state import TopicInfo
from kbroker.pipeline.aggregate import result_files
from kbroker.pipeline.aggregate.checkpoint_identity import claim_checkpoint, lock_checkpoint
from kbroker.pipeline.aggregate.definition import (
    OBSERVATION,
    PROBLEMS,
    AggregateDefinition,
    aggregate_windows,
    check_definition,
    message_columns,
    observe_problems,
    parse_records,
    window_column,
)
from kbroker.pipeline.aggregate.value_decoder import ValueDecoder
from kbroker.pipeline.cluster_admin import ClusterAdmin
from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.security import kafka_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

POLL_INTERVAL_S = 0.1
COMPACTED = {"cleanup.policy": "compact"}


@dataclass(frozen=True)
class ResultSink:
    """The target of the results: a topic, or a directory (path or URI)."""

    topic: str = ""
    directory: str = ""


@dataclass(frozen=True)
class RunOptions:
    """Options of one run of an aggregate."""

    once: bool = True  # end at the current end of the topics
    interval_ms: int = 10_000  # between the starts of batches, unless once
    from_earliest: bool = True  # a new aggregate starts at the earliest records, else at new ones
    max_records: int = 0  # in a batch; 0 for no limit
    accept_loss: bool = False  # continue if records were deleted before they were read


@dataclass(frozen=True)
class BatchReport:
    """The result of one batch."""

    number: int
    records: int  # read from the topics
    problems: Mapping[str, int]  # skipped records by sql.PROBLEMS
    late: int  # skipped records whose window was closed
    updated: int  # changed rows of the result
    watermark_ms: int  # windows that end earlier are closed; 0 at the start
    milliseconds: int


@dataclass
class AggregateSummary:
    """The sums over the batches of a run."""

    batches: int = 0  # the batches with records
    records: int = 0
    problems: dict[str, int] = field(default_factory=lambda: dict.fromkeys(PROBLEMS, 0))
    late: int = 0
    updated: int = 0
    watermark_ms: int = 0

    def add(self, batch: BatchReport) -> None:
        """Add a batch."""
        self.batches += batch.records > 0  # others only close windows
        self.records += batch.records
        self.late += batch.late
        self.updated += batch.updated
        self.watermark_ms = max(self.watermark_ms, batch.watermark_ms)
        for name, count in batch.problems.items():
            self.problems[name] += count


def require_topics(bootstrap: str, definition: AggregateDefinition, target: ResultSink) -> None:
    """Raise PipelineError if no broker responds, a topic does not exist, or the target is a source topic."""
    with ClusterAdmin(bootstrap) as cluster:
        _describe_topics(cluster, definition, target)


def _describe_topics(
    cluster: ClusterAdmin, definition: AggregateDefinition, target: ResultSink
) -> dict[str, TopicInfo]:
    if target.topic in definition.topics:
        raise PipelineError(f"topic {target.topic} cannot be aggregated into itself")
    topics = cluster.require_topics(definition.topics)
    return topics | cluster.describe_topics([target.topic]) if target.topic else topics


class AggregateQuery:
    """An aggregate that is ready to run.

    The constructor creates the checkpoint and the target, or checks that they belong to this aggregate. It creates a
    missing target topic with cleanup.policy=compact. It raises PipelineError.
    """

    def __init__(
        self,
        spark: "SparkSession",
        bootstrap: str,
        definition: AggregateDefinition,
        target: ResultSink,
        checkpoint: str = "",
        decoder: ValueDecoder | None = None,
    ) -> None:
        """`decoder` is for values that are not plain JSON."""
        self.definition = check_definition(definition)
        self.target = target
        self.notes: list[str] = []  # for the user, before the start
        self._bootstrap = bootstrap
        if bool(target.topic) == bool(target.directory):
            raise PipelineError("specify either a topic or a directory for the results")
        if not (checkpoint or target.directory):
            raise PipelineError("an aggregate into a topic requires a checkpoint directory")
        # A new session, because the properties must not affect other queries.
        self._spark = spark.newSession()
        self._spark.conf.set("spark.sql.session.timeZone", "UTC")
        self._spark.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
        self._spark.conf.set("spark.sql.streaming.numRecentProgressUpdates", 200)
        self._results = open_storage(target.directory) if target.directory else None
        self._checkpoint = open_storage(checkpoint or f"{target.directory}/{result_files.CHECKPOINT}")
        self._merge_error: BaseException | None = None
        self._decode: str | None = None
        if decoder is not None:
            self._decode = "kbroker_decode"
            self._spark.udf.register(self._decode, decoder.to_json, "string")
        self._claim_targets()

    def _claim_targets(self) -> None:
        topic = self.target.topic
        with ClusterAdmin(self._bootstrap) as cluster:
            topics = _describe_topics(cluster, self.definition, self.target)
            ids = {name: topics[name].topic_id for name in self.definition.topics}
            target = f"topic {topic}" if topic else "files"
            identity = claim_checkpoint(self._checkpoint, self.definition, ids, target)
            if self._results is not None:
                result_files.claim_directory(self._results, identity.id)
            elif topic not in topics:
                cluster.create_topic(topic, max(topics[name].partitions for name in ids), COMPACTED)
                self.notes.append(f"created topic {topic} with cleanup.policy=compact")
            elif "compact" not in cluster.effective_configs("cleanup.policy", [topic]).get(topic, ""):
                self.notes.append(
                    f"topic {topic} does not have cleanup.policy=compact, so it keeps "
                    "every update; the last one of a key is current"
                )

    def run(
        self, options: RunOptions, on_batch: Callable[[BatchReport], None], stop: threading.Event
    ) -> AggregateSummary:
        """Run until the current end of the topics (`once`), or until `stop` is set and the current batch is done.

        Raises PipelineError for errors of the result files and for lost records; exceptions of Spark are passed on.
        """
        with lock_checkpoint(self._checkpoint):
            if self._results is not None:
                result_files.remove_staging(self._results)
            return self._run(options, on_batch, stop)

    def _run(
        self, options: RunOptions, on_batch: Callable[[BatchReport], None], stop: threading.Event
    ) -> AggregateSummary:
        summary = AggregateSummary()
        query = self._start(options)
        try:
            for progress in _batch_progress(query, stop):
                batch = self._batch_report(progress)
                summary.add(batch)
                on_batch(batch)
        finally:
            query.stop()
        if (error := query.exception()) is not None:
            raise self._as_pipeline_error(error)
        return summary

    def _start(self, options: RunOptions) -> "StreamingQuery":
        records = parse_records(self._source(options).load(), self.definition, self._decode)
        rows = aggregate_windows(observe_problems(records), self.definition)
        if self._results is None:
            writer = rows.selectExpr(*message_columns(self.definition)).writeStream.format("kafka")
            writer = writer.options(**kafka_options(self._bootstrap)).option("topic", self.target.topic)
        else:
            writer = rows.writeStream.foreachBatch(self._merge)
        writer = writer.outputMode("update").option("checkpointLocation", self._checkpoint.uri(""))
        if options.once:
            return writer.trigger(availableNow=True).start()
        return writer.trigger(processingTime=f"{options.interval_ms} milliseconds").start()

    def _source(self, options: RunOptions) -> Any:
        reader = self._kafka_source(self._spark.readStream)
        reader = reader.option("startingOffsets", "earliest" if options.from_earliest else "latest")
        reader = reader.option("failOnDataLoss", str(not options.accept_loss).lower())
        return reader.option("maxOffsetsPerTrigger", options.max_records) if options.max_records else reader

    def _kafka_source(self, reader: Any) -> Any:
        reader = reader.format("kafka").options(**kafka_options(self._bootstrap))
        reader = reader.option("subscribe", ",".join(self.definition.topics))
        level = "read_committed" if self.definition.committed_only else "read_uncommitted"
        return reader.option("kafka.isolation.level", level)

    def _merge(self, changed: "DataFrame", batch: int) -> None:
        assert self._results is not None
        try:
            result_files.merge_results(self._results, self.definition, changed)
        except BaseException as error:
            # Spark raises it as the text of a traceback.
            self._merge_error = error
            raise

    def _batch_report(self, progress: Mapping[str, Any]) -> BatchReport:
        counts = (progress.get("observedMetrics") or {}).get(OBSERVATION) or {}
        states = progress["stateOperators"]
        dropped = sum(state["numRowsDroppedByWatermark"] for state in states)
        return BatchReport(
            number=progress["batchId"],
            records=counts.get("records") or 0,
            problems={name: counts.get(name) or 0 for name in PROBLEMS},
            late=self._count_late(progress) if dropped else 0,
            updated=sum(state["numRowsUpdated"] for state in states),
            watermark_ms=_watermark_ms(progress),
            milliseconds=progress["durationMs"].get("triggerExecution", 0),
        )

    def _count_late(self, progress: Mapping[str, Any]) -> int:
        """Count the records of a batch that came after one of their windows was closed.

        Spark counts dropped groups instead of records, so this method reads the batch's records again. The watermark
        of the preceding batch decides which records are late.
        """
        preceding = json.loads(self._checkpoint.read(f"offsets/{progress['batchId'] - 1}").splitlines()[1])
        (source,) = progress["sources"]
        end: dict[str, dict[str, int]] = source["endOffset"]
        start = {
            topic: {number: source["startOffset"].get(topic, {}).get(number, 0) for number in offsets}
            for topic, offsets in end.items()
        }
        frame = self._kafka_source(self._spark.read).option("failOnDataLoss", "false")
        frame = frame.option("startingOffsets", json.dumps(start)).option("endingOffsets", json.dumps(end)).load()
        valid = parse_records(frame, self.definition, self._decode).where("__problem IS NULL")
        by_window = valid.select("__position", window_column(self.definition))
        closed = by_window.where(f"unix_millis(window.end) <= {preceding['batchWatermarkMs']}")
        return closed.select("__position").distinct().count()

    def _as_pipeline_error(self, error: BaseException) -> BaseException:
        if isinstance(self._merge_error, ArchiveError):
            return self._merge_error
        # All of Spark's errors about deleted records recommend this option.
        if "failOnDataLoss" in f"{error} {self._merge_error}":
            return PipelineError(
                "records were deleted from the topic before they were read: use --accept-loss to continue without "
                "them, or another --checkpoint to start a new aggregate"
            )
        return error


def _batch_progress(query: "StreamingQuery", stop: threading.Event) -> Iterator[dict[str, Any]]:
    """Yield the progress of each batch in order, until the query has ended or `stop` is set."""
    last_timestamp = ""
    while True:
        # Checked before the progress is read, which is complete once the query has ended.
        has_ended = not query.isActive or (stop.is_set() and not query.status["isTriggerActive"])
        last = query.lastProgress
        if last is not None and last.timestamp > last_timestamp:
            for progress in (json.loads(report.json) for report in query.recentProgress):
                if progress["timestamp"] > last_timestamp:
                    last_timestamp = progress["timestamp"]
                    if "addBatch" in progress["durationMs"]:  # otherwise there was no batch
                        yield progress
        if has_ended:
            return
        threading.Event().wait(POLL_INTERVAL_S)


def _watermark_ms(progress: Mapping[str, Any]) -> int:
    text = (progress.get("eventTime") or {}).get("watermark")
    return round(datetime.fromisoformat(text).timestamp() * 1000) if text else 0
