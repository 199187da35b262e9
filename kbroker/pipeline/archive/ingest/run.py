"""A run of the archive: Spark's streaming query from topics into commits, through restarts of the broker."""

import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from kbroker.common import TopicPartition
from kbroker.pipeline.archive.archive import Archive
from kbroker.pipeline.archive.ingest.batch import (
    Changed,
    Ingest,
    Summary,
    Tell,
    gap_text,
    news,
    require_same_topics,
    require_unchanged,
)
from kbroker.pipeline.archive.ingest.brokers import FIRST_PAUSE_S, LONGEST_PAUSE_S, Brokers, Ended, Stop
from kbroker.pipeline.archive.ingest.checkpoint import Checkpoints, Generation, goes_on
from kbroker.pipeline.archive.ingest.failures import passes
from kbroker.pipeline.archive.ingest.offset_ranges import initial_gaps, require_whole_logs, resume_offsets
from kbroker.pipeline.archive.ingest.rate_limit import RateLimit, batch_size
from kbroker.pipeline.archive.ingest.subscription import Note, Subscription, offsets_text
from kbroker.pipeline.archive.ingest.topic_observer import EVERY_S as OBSERVE_EVERY_S
from kbroker.pipeline.archive.ingest.topic_observer import Observer
from kbroker.pipeline.archive.manifest.model import ArchiveState, ManifestCommit, TopicInfo
from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.kafka import BrokerGone, Cluster, partitions_of, reachable
from kbroker.pipeline.spark.explain import explain, is_sparks
from kbroker.pipeline.storage.storage import Storage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CHECKPOINT = "_checkpoint"
MOST_RECORDS = 2_000_000
TASK_RECORDS = 250_000
POLL_S = 0.2
LOOK_S = 5.0  # between looks at whether the broker is there


@dataclass(frozen=True)
class Origin:
    """Where topics begin that the archive does not have."""

    kind: Literal["earliest", "latest", "time"] = "earliest"
    time_ms: int = 0


@dataclass(frozen=True)
class Options:
    """Of one run."""

    bootstrap: str
    subscription: Subscription
    committed_only: bool = False
    once: bool = False
    every_s: float = 10.0
    most_records: int | None = MOST_RECORDS  # of a batch
    rate: float | None = None  # records/s
    origin: Origin = field(default_factory=Origin)
    broker_wait_s: float = 300.0
    observe_every_s: float = OBSERVE_EVERY_S


def archive_topics(
    spark: "SparkSession",
    storage: Storage,
    options: Options,
    stop: Stop,
    tell: Tell,
    checkpoint: Storage | None = None,
) -> tuple[Summary, int]:
    """Archives topics until it is asked to end or, with `once`, until what there was is archived.

    Gives what was archived and the number of the archive's last commit. `checkpoint`: a directory for Spark's
    checkpoint, by default within the archive. What was committed when it raises PipelineError stays.
    """
    matches = _matcher(spark, options.subscription.pattern)
    cluster = Cluster(options.bootstrap)
    try:
        _topics(cluster, options, matches)  # before a directory is made for nothing
    finally:
        cluster.close()
    archive = open_archive(storage, options.committed_only)
    place = (storage, CHECKPOINT) if checkpoint is None else (checkpoint, "")
    summary = Run(spark, archive, place, options, matches, stop, tell).run()
    return summary, summary.commit


def _topics(cluster: Cluster, options: Options, matches: Callable[[str], bool] | None) -> Mapping[str, TopicInfo]:
    if matches is None:
        return cluster.require_topics(options.subscription.topics)
    topics = cluster.topics(pattern=matches)
    if not topics and options.once:
        raise PipelineError(f"no topic matches --pattern {options.subscription.pattern}")
    return topics


def open_archive(storage: Storage, committed_only: bool) -> Archive:
    """The archive to write to, made where there is none. PipelineError for one that holds other records."""
    archive = Archive.open_or_create(storage, {"committed_only": committed_only})
    was = bool(archive.state().settings.get("committed_only"))
    if was != committed_only:
        kind = "committed records only: go on with" if was else "all records: go on without"
        raise PipelineError(f"{storage.root} was begun with {kind} --committed-only, or name another directory")
    archive.remove_leftovers()
    return archive


class Run:
    """One run, from its begin to its end."""

    def __init__(
        self,
        spark: "SparkSession",
        archive: Archive,
        checkpoint: tuple[Storage, str],
        options: Options,
        matches: Callable[[str], bool] | None,
        stop: Stop,
        tell: Tell,
    ) -> None:
        """`checkpoint`: a storage and the directory in it. `matches`: of a topic's name, where there is a pattern."""
        self._spark = spark
        self._archive = archive
        self._options = options
        self._stop = stop
        self._tell = tell
        self._checkpoints = Checkpoints(*checkpoint, str(archive.state().settings.get("id", "")))
        self._brokers = Brokers(options.bootstrap, options.broker_wait_s, stop, tell.warn)
        self._pace = RateLimit(options.rate) if options.rate else None
        self._matches = matches
        self.summary = Summary(commit=archive.state().number)

    def run(self) -> Summary:
        """Archives until it is asked to end, with `once` until what there was is archived. Raises PipelineError."""
        observer = Observer(self._options.bootstrap, self._archive.storage, self._options.observe_every_s)
        try:
            with suppress(Ended):
                self._through_failures(observer)
            self._observe(observer)
        except Exception as error:
            # Who ends a run often ends Spark's JVM as well; the batch that it was at begins anew another time.
            if not (self._stop.asked and (is_sparks(error) or isinstance(error, ConnectionError))):
                raise
        finally:
            observer.close()
            self._brokers.close()
        return self.summary

    def _observe(self, observer: Observer) -> None:
        """Groups that may not be read are no reason not to archive."""
        try:
            self.summary.commit = max(self.summary.commit, observer.observe())
        except PipelineError as error:
            self._tell.warn(f"topic configs and group offsets are not archived now: {error}")

    def _through_failures(self, observer: Observer) -> None:
        """Starts the query again whenever it fails for want of a broker."""
        pause, deadline = FIRST_PAUSE_S, time.monotonic() + self._options.broker_wait_s
        while not self._stop.asked:
            ingest = self._ingest(self._generation())
            failure = self._query(ingest, observer)
            if failure is None:
                return
            if ingest.batches:
                pause, deadline = FIRST_PAUSE_S, time.monotonic() + self._options.broker_wait_s
            if not (isinstance(failure, Changed) or passes(failure)) or time.monotonic() > deadline:
                if is_sparks(failure):
                    raise PipelineError(_told(failure)) from failure
                raise failure
            self._tell.warn(f"the query is started again: {_told(failure)}")
            self._stop.pause(pause)
            pause = min(LONGEST_PAUSE_S, pause * 2)

    def _ingest(self, generation: Generation) -> Ingest:
        brokers = Brokers(self._options.bootstrap, self._options.broker_wait_s, self._stop, self._tell.warn)
        return Ingest(self._spark, self._archive, generation, brokers, self._stop, self._pace, self._tell, self.summary)

    def _subscribed(self, cluster: Cluster) -> Mapping[str, TopicInfo]:
        return _topics(cluster, self._options, self._matches)

    def _generation(self) -> Generation:
        """The checkpoint to go on with, or a new one, after what is gone is told and committed."""
        topics = self._brokers.ask(self._subscribed)
        while not topics:
            self._stop.pause(1)
            topics = self._brokers.ask(self._subscribed)
        state = self._archive.state()
        require_same_topics(state, topics)
        newest = self._checkpoints.newest()
        partitions = partitions_of(topics)
        expected = self._expected(state, partitions, newest)
        known = {at: offset for at, offset in resume_offsets(state).items() if at in expected}
        committed_only = self._options.committed_only
        log_starts, _ = self._brokers.settled(
            lambda cluster: (cluster.beginnings(partitions), cluster.ends(partitions, committed_only)),
            lambda answer: require_whole_logs(known, answer[1]),
        )
        self._tell_gaps(state, expected, log_starts, topics)
        begin = {at: max(offset, log_starts[at]) for at, offset in expected.items()}
        if newest is not None and self._fits(newest, begin):
            return newest
        note = Note(
            str(state.settings.get("id", "")), str(uuid.uuid4()), self._options.subscription, committed_only, begin
        )
        return self._checkpoints.begin(note)

    def _expected(
        self, state: ArchiveState, partitions: list[TopicPartition], newest: Generation | None
    ) -> dict[TopicPartition, int]:
        """Where each partition goes on, or begins."""
        resume = resume_offsets(state)
        expected = {at: resume[at] for at in partitions if at in resume}
        if newest is not None:  # which may have begun partitions that had no record yet
            starts = newest.note.starts
            expected |= {at: starts[at] for at in partitions if at in starts and at not in expected}
        # A partition that a topic got later is read whole, wherever the topic was begun.
        topics = {at.topic for at in expected} | {at.topic for at in resume}
        expected |= {at: 0 for at in partitions if at not in expected and at.topic in topics}
        new = [at for at in partitions if at not in expected]
        origin = self._options.origin
        if origin.kind == "latest" and new:
            committed_only = self._options.committed_only
            return expected | self._brokers.ask(lambda cluster: cluster.ends(new, committed_only))
        if origin.kind == "time" and new:
            return expected | self._brokers.ask(lambda cluster: cluster.offsets_at(new, origin.time_ms))
        return expected | dict.fromkeys(new, 0)

    def _tell_gaps(
        self,
        state: ArchiveState,
        expected: Mapping[TopicPartition, int],
        log_starts: Mapping[TopicPartition, int],
        topics: Mapping[str, TopicInfo],
    ) -> None:
        gaps = initial_gaps(expected, log_starts)
        if not gaps:
            return
        resume = resume_offsets(state)
        lost = {gap.topic for gap in gaps}

        def build(now: ArchiveState) -> ManifestCommit:
            require_unchanged(resume, now, [TopicPartition(gap.topic, gap.partition) for gap in gaps])
            of_these = {name: info for name, info in topics.items() if name in lost}
            return ManifestCommit("append", time.time_ns() // 1_000_000, gaps=tuple(gaps), topics=news(now, of_these))

        self.summary.commit = self._archive.commit(build).number
        self.summary.gaps += gaps
        for gap in gaps:
            self._tell.warn(gap_text(gap))

    def _fits(self, generation: Generation, begin: Mapping[TopicPartition, int]) -> bool:
        note = generation.note
        if note.subscription != self._options.subscription or note.committed_only != self._options.committed_only:
            return False
        try:
            return goes_on(generation.position(), begin)
        except PipelineError as error:
            self._tell.warn(f"{error}; going on from what the archive has")
            return False

    def _query(self, ingest: Ingest, observer: Observer) -> Exception | None:
        """Runs Spark's query to its end; gives what it failed with, if that is not that it was asked to end."""
        options = self._options
        frame = self._reader(ingest.generation).load()
        writer = frame.writeStream.foreachBatch(ingest)
        writer = writer.option("checkpointLocation", ingest.generation.location)
        trigger: dict[str, Any] = {"processingTime": f"{max(0, round(options.every_s * 1000))} milliseconds"}
        query = writer.trigger(**({"availableNow": True} if options.once else trigger)).start()
        try:
            self._watch(query, ingest, observer)
        finally:
            query.stop()
            ingest.brokers.close()
        failure: Exception | None = ingest.failure or query.exception()
        if isinstance(failure, Ended) or (failure is not None and self._stop.asked):
            raise Ended
        return failure

    def _reader(self, generation: Generation) -> Any:
        options = self._options
        reader = self._spark.readStream.format("kafka").option("kafka.bootstrap.servers", options.bootstrap)
        reader = reader.option(*options.subscription.option).option("includeHeaders", "true")
        reader = reader.option("startingOffsets", offsets_text(generation.note.starts))
        # Spark would only fail where something is gone; we say what.
        reader = reader.option("failOnDataLoss", "false")
        isolation = "read_committed" if options.committed_only else "read_uncommitted"
        reader = reader.option("kafka.isolation.level", isolation).option("kafka.reconnect.backoff.max.ms", "1000")
        most = batch_size(options.most_records, options.rate, options.every_s)
        # A large batch is more tasks than the topics have partitions, so that all cores have work to its end.
        reader = reader.option("maxRecordsPerPartition", str(TASK_RECORDS))
        return reader if most is None else reader.option("maxOffsetsPerTrigger", str(most))

    def _watch(self, query: Any, ingest: Ingest, observer: Observer) -> None:
        """Returns when the query is at its end, or is to be ended; raises BrokerGone when nobody answers too long."""
        there, look_at = time.monotonic(), time.monotonic() + LOOK_S
        while not _terminated(query):
            if self._stop.asked > 1 or (self._stop.asked and not ingest.busy):
                return
            if observer.due and ingest.failure is None:
                self._observe(observer)
            now = time.monotonic()
            if now >= look_at:
                look_at = now + LOOK_S
                there = self._still_there(there)

    def _still_there(self, since: float) -> float:
        """When a broker was last there; raises BrokerGone when that is too long ago."""
        try:
            reachable(self._options.bootstrap)
            return time.monotonic()
        except BrokerGone:
            if time.monotonic() - since > self._options.broker_wait_s:
                raise
            return since


def _terminated(query: Any) -> bool:
    """Waits a moment for the query's end. How it ended is asked later."""
    from pyspark.errors import StreamingQueryException

    try:
        return bool(query.awaitTermination(POLL_S))
    except StreamingQueryException:
        return True


def _matcher(spark: "SparkSession", pattern: str | None) -> Callable[[str], bool] | None:
    """Java's own regular expressions, since it is Java that looks for topics while the query runs."""
    if pattern is None:
        return None
    from pyspark.errors import IllegalArgumentException

    jvm: Any = spark._jvm
    try:
        compiled = jvm.java.util.regex.Pattern.compile(pattern)
    except IllegalArgumentException as error:
        reason = str(error).partition("\n")[0]
        raise PipelineError(f"--pattern {pattern} is no regular expression: {reason}") from None
    return lambda name: bool(compiled.matcher(name).matches())


def _told(error: BaseException) -> str:
    return str(error) if isinstance(error, PipelineError) else explain(error)
