"""A definition as a running query: checks before it starts, what each batch did, and its end.

Results are upserts, so that a batch that is done twice after a crash does no harm: to a topic a record for each window
and group that a batch changed, the last of a key being right; to Parquet see aggregate_files.
"""

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

from kbroker.pipeline.aggregate import checkpoint_identity as aggregate_note
from kbroker.pipeline.aggregate import result_files as aggregate_files
from kbroker.pipeline.aggregate.definition import AggregateDefinition, check_definition
from kbroker.pipeline.aggregate.sql import OBSERVED, PROBLEMS, aggregated, message, observed, read, windows
from kbroker.pipeline.archive.manifest.model import TopicInfo
from kbroker.pipeline.cluster_admin import ClusterAdmin
from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.storage.location import open_storage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

LOOK_EVERY_S = 0.1
COMPACTED = {"cleanup.policy": "compact"}


@dataclass(frozen=True)
class ResultSink:
    """Where results go: a topic, or a directory (path or URI)."""

    topic: str = ""
    directory: str = ""


@dataclass(frozen=True)
class RunOptions:
    """How a query runs. `most_records`: in one batch, 0 for no limit."""

    once: bool = True  # up to where the topics end now
    every_ms: int = 10_000  # otherwise a batch so often
    earliest: bool = True  # where a new aggregate begins
    most_records: int = 0
    accept_loss: bool = False  # goes on where records were removed before they were read


@dataclass(frozen=True)
class BatchReport:
    """What one batch did."""

    number: int
    records: int  # that were read
    problems: Mapping[str, int]  # of them left out, by what is wrong with them (aggregate_sql.PROBLEMS)
    late: int  # of them left out of a window that was closed
    updated: int  # rows of the result
    watermark_ms: int  # windows that end before it are closed; 0 at the beginning
    milliseconds: int


@dataclass
class AggregateSummary:
    """What the batches of a run did together."""

    batches: int = 0  # that had records
    records: int = 0
    problems: dict[str, int] = field(default_factory=lambda: dict.fromkeys(PROBLEMS, 0))
    late: int = 0
    updated: int = 0
    watermark_ms: int = 0

    def add(self, batch: BatchReport) -> None:
        """One more batch."""
        self.batches += batch.records > 0  # one that only closes windows is none of the user's
        self.records += batch.records
        self.late += batch.late
        self.updated += batch.updated
        self.watermark_ms = max(self.watermark_ms, batch.watermark_ms)
        for name, count in batch.problems.items():
            self.problems[name] += count


def require_topics(bootstrap: str, definition: AggregateDefinition, target: ResultSink) -> None:
    """Raises PipelineError where no broker answers, a topic is absent, or is to be aggregated into itself."""
    with ClusterAdmin(bootstrap) as cluster:
        _topics(cluster, definition, target)


def _topics(cluster: ClusterAdmin, definition: AggregateDefinition, target: ResultSink) -> dict[str, TopicInfo]:
    if target.topic in definition.topics:
        raise PipelineError(f"topic {target.topic} cannot be aggregated into itself")
    found = cluster.require_topics(definition.topics)
    return found | cluster.describe_topics([target.topic]) if target.topic else found


class AggregateQuery:
    """An aggregate that is ready to run: its topics are there, its checkpoint and target are its own.

    Raises PipelineError where they are not. A target topic that is absent is created, compacted.
    """

    def __init__(
        self,
        spark: "SparkSession",
        bootstrap: str,
        definition: AggregateDefinition,
        target: ResultSink,
        checkpoint: str = "",
    ) -> None:
        self.definition = check_definition(definition)
        self.target = target
        self.remarks: list[str] = []  # what somebody should know before it starts
        self._bootstrap = bootstrap
        if bool(target.topic) == bool(target.directory):
            raise PipelineError("results go to a topic or to a directory: name one of them")
        if not (checkpoint or target.directory):
            raise PipelineError("an aggregate into a topic needs a checkpoint: a directory that keeps its state")
        # A session of its own: its settings are nobody else's.
        self._spark = spark.newSession()
        self._spark.conf.set("spark.sql.session.timeZone", "UTC")
        self._spark.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
        self._spark.conf.set("spark.sql.streaming.numRecentProgressUpdates", 200)
        self._results = open_storage(target.directory, spark) if target.directory else None
        self._checkpoint = open_storage(checkpoint or f"{target.directory}/{aggregate_files.CHECKPOINT}", spark)
        self._failure: BaseException | None = None
        self._claim()

    def _claim(self) -> None:
        topic = self.target.topic
        with ClusterAdmin(self._bootstrap) as cluster:
            found = _topics(cluster, self.definition, self.target)
            ids = {name: found[name].topic_id for name in self.definition.topics}
            where = f"topic {topic}" if topic else "files"
            note = aggregate_note.claim_checkpoint(self._checkpoint, self.definition, ids, where)
            if self._results is not None:
                aggregate_files.claim_directory(self._results, note.id)
            elif topic not in found:
                cluster.create_topic(topic, max(found[name].partitions for name in ids), COMPACTED)
                self.remarks.append(f"topic {topic} is created, with cleanup.policy=compact")
            elif "compact" not in cluster.effective_configs("cleanup.policy", [topic]).get(topic, ""):
                self.remarks.append(
                    f"topic {topic} has no cleanup.policy=compact: it keeps every update, the last of a key is right"
                )

    def run(
        self, how: RunOptions, on_batch: Callable[[BatchReport], None], stopping: threading.Event
    ) -> AggregateSummary:
        """Runs until the end (`once`), or until `stopping` is set: then the batch that is under way is finished.

        Spark's failures leave as they are, those of files and lost records as PipelineError.
        """
        with aggregate_note.lock_checkpoint(self._checkpoint):
            if self._results is not None:
                aggregate_files.remove_staging(self._results)
            return self._run(how, on_batch, stopping)

    def _run(
        self, how: RunOptions, on_batch: Callable[[BatchReport], None], stopping: threading.Event
    ) -> AggregateSummary:
        summary = AggregateSummary()
        query = self._start(how)
        try:
            for progress in _progress(query, stopping):
                batch = self._batch(progress)
                summary.add(batch)
                on_batch(batch)
        finally:
            query.stop()
        if (error := query.exception()) is not None:
            raise self._told(error)
        return summary

    def _start(self, how: RunOptions) -> "StreamingQuery":
        frame = self._source(how).load()
        rows = aggregated(observed(read(frame, self.definition)), self.definition)
        if self._results is None:
            writer = rows.selectExpr(*message(self.definition)).writeStream.format("kafka")
            writer = writer.option("kafka.bootstrap.servers", self._bootstrap).option("topic", self.target.topic)
        else:
            writer = rows.writeStream.foreachBatch(self._merge)
        writer = writer.outputMode("update").option("checkpointLocation", self._checkpoint.uri(""))
        if how.once:
            return writer.trigger(availableNow=True).start()
        return writer.trigger(processingTime=f"{how.every_ms} milliseconds").start()

    def _source(self, how: RunOptions) -> Any:
        reader = self._kafka(self._spark.readStream)
        reader = reader.option("startingOffsets", "earliest" if how.earliest else "latest")
        reader = reader.option("failOnDataLoss", str(not how.accept_loss).lower())
        return reader.option("maxOffsetsPerTrigger", how.most_records) if how.most_records else reader

    def _kafka(self, reader: Any) -> Any:
        reader = reader.format("kafka").option("kafka.bootstrap.servers", self._bootstrap)
        reader = reader.option("subscribe", ",".join(self.definition.topics))
        level = "read_committed" if self.definition.committed_only else "read_uncommitted"
        return reader.option("kafka.isolation.level", level)

    def _merge(self, changed: "DataFrame", batch: int) -> None:
        assert self._results is not None
        try:
            aggregate_files.merge_results(self._results, self.definition, changed)
        except BaseException as error:
            # Spark would tell it as text of a traceback.
            self._failure = error
            raise

    def _batch(self, progress: Mapping[str, Any]) -> BatchReport:
        seen = (progress.get("observedMetrics") or {}).get(OBSERVED) or {}
        states = progress["stateOperators"]
        dropped = sum(state["numRowsDroppedByWatermark"] for state in states)
        return BatchReport(
            number=progress["batchId"],
            records=seen.get("records") or 0,
            problems={name: seen.get(name) or 0 for name in PROBLEMS},
            late=self._late(progress) if dropped else 0,
            updated=sum(state["numRowsUpdated"] for state in states),
            watermark_ms=_watermark_ms(progress),
            milliseconds=progress["durationMs"].get("triggerExecution", 0),
        )

    def _late(self, progress: Mapping[str, Any]) -> int:
        """How many records of a batch came too late for one of their windows.

        Spark counts groups that it dropped, not records; so these are read again, which happens only where it dropped
        any. What is late in a batch is decided by the watermark of the batch before it.
        """
        before = json.loads(self._checkpoint.read(f"offsets/{progress['batchId'] - 1}").splitlines()[1])
        (source,) = progress["sources"]
        end: dict[str, dict[str, int]] = source["endOffset"]
        start = {
            topic: {number: source["startOffset"].get(topic, {}).get(number, 0) for number in offsets}
            for topic, offsets in end.items()
        }
        frame = self._kafka(self._spark.read).option("failOnDataLoss", "false")
        frame = frame.option("startingOffsets", json.dumps(start)).option("endingOffsets", json.dumps(end)).load()
        kept = read(frame, self.definition).where("__problem IS NULL").select("__position", windows(self.definition))
        closed = kept.where(f"unix_millis(window.end) <= {before['batchWatermarkMs']}")
        return closed.select("__position").distinct().count()

    def _told(self, error: BaseException) -> BaseException:
        if isinstance(self._failure, PipelineError):
            return self._failure
        # What Spark advises in every one of its messages about records that are gone.
        if "failOnDataLoss" in f"{error} {self._failure}":
            return PipelineError(
                "records were removed from the topic before they were read, so that results would be too small: "
                "--accept-loss goes on without them, another --checkpoint begins anew"
            )
        return error


def _progress(query: "StreamingQuery", stopping: threading.Event) -> Iterator[dict[str, Any]]:
    """What each batch reports, in order, until the query ends or shall end."""
    seen = ""
    while True:
        # Asked before the reports: those of a query that has ended are complete.
        ended = not query.isActive or (stopping.is_set() and not query.status["isTriggerActive"])
        last = query.lastProgress
        if last is not None and last.timestamp > seen:
            for progress in (json.loads(report.json) for report in query.recentProgress):
                if progress["timestamp"] > seen:
                    seen = progress["timestamp"]
                    if "addBatch" in progress["durationMs"]:  # otherwise there was nothing to do
                        yield progress
        if ended:
            return
        threading.Event().wait(LOOK_EVERY_S)


def _watermark_ms(progress: Mapping[str, Any]) -> int:
    text = (progress.get("eventTime") or {}).get("watermark")
    return round(datetime.fromisoformat(text).timestamp() * 1000) if text else 0
