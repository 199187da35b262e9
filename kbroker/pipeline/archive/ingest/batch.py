"""One batch of the streaming query into one commit.

What makes it exactly once: Spark has written down where a batch ends before it begins, and gives the same batch again
when it was not finished; the commit carries the query and the batch, and the offsets that it covers have to follow on
those that the archive has. Whatever of a batch is archived already is left out.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kbroker.common import TopicPartition
from kbroker.pipeline.archive.archive import Archive
from kbroker.pipeline.archive.ingest.brokers import Brokers, Ended, Stop
from kbroker.pipeline.archive.ingest.checkpoint import Generation
from kbroker.pipeline.archive.ingest.offset_ranges import (
    Wanted,
    gone,
    holes,
    needs_search,
    require_whole_logs,
    resume_offsets,
    told,
    unwanted_below,
    wanted_ranges,
)
from kbroker.pipeline.archive.ingest.rate_limit import RateLimit
from kbroker.pipeline.archive.manifest.model import ArchiveState, DataFile, Gap, ManifestCommit, OffsetRange, TopicInfo
from kbroker.pipeline.archive.staging.data_file_writer import staged
from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.kafka import Cluster

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Changed(PipelineError):
    """A topic is not what it was when the query began: the run has to look at all of them again."""


@dataclass
class Summary:
    """What a run has archived."""

    batches: int = 0
    files: int = 0
    size: int = 0  # of the files
    records: dict[str, int] = field(default_factory=dict)  # by topic
    data: int = 0  # bytes of keys and values
    gaps: list[Gap] = field(default_factory=list)
    commit: int = -1  # the archive's last that the run knows of

    def add(self, files: Sequence[DataFile]) -> None:
        """One more batch."""
        self.batches += 1
        self.files += len(files)
        for file in files:
            self.size += file.size
            self.data += sum(part.bytes for part in file.parts)
            self.records[file.topic] = self.records.get(file.topic, 0) + file.rows


@dataclass(frozen=True)
class Tell:
    """How a run speaks: each a line."""

    progress: Callable[[str], None]
    warn: Callable[[str], None]


@dataclass
class Ingest:
    """What Spark calls with every batch of a query."""

    spark: "SparkSession"
    archive: Archive
    generation: Generation
    brokers: Brokers
    stop: Stop
    pace: RateLimit | None
    tell: Tell
    summary: Summary
    failure: Exception | None = None
    busy: bool = False
    batches: int = 0  # that were finished

    def __call__(self, archive_dataframe: "DataFrame", batch: int) -> None:
        self.busy = True
        try:
            if self.stop.asked:
                raise Ended
            self._batch(archive_dataframe, batch)
            self.batches += 1
        except Exception as error:
            self.failure = error
            raise
        finally:
            self.busy = False

    def _batch(self, archive_dataframe: "DataFrame", batch: int) -> None:
        state = self.archive.state()
        if state.queries.get(self.generation.note.query, -1) >= batch:
            return
        begins, ends = self.generation.planned(batch)
        resume = resume_offsets(state)
        starts = self.generation.note.starts
        wanted = wanted_ranges(begins, ends, resume, starts)
        if wanted:
            self._slow_down(wanted)
            self._archive(
                _without(archive_dataframe, unwanted_below(begins, ends, resume, starts)), batch, state, wanted
            )

    def _slow_down(self, wanted: Sequence[Wanted]) -> None:
        if self.pace is not None:
            self.stop.pause(self.pace.wait(time.monotonic()))
            self.pace.took(sum(one.end - one.start for one in wanted), time.monotonic())

    def _archive(
        self, archive_dataframe: "DataFrame", batch: int, state: ArchiveState, wanted: Sequence[Wanted]
    ) -> None:
        started = time.monotonic()
        resume = resume_offsets(state)
        with staged(self.spark, self.archive) as staging:
            files = staging.write(archive_dataframe)
            _require_within(files, wanted)
            topics, log_starts = self._look(state, wanted)
            staging.publish()
            covered, gaps = told(wanted, self._lost(state, files, wanted, log_starts))

            def build(now: ArchiveState) -> ManifestCommit | None:
                require_unchanged(resume, now, [one.partition for one in wanted])
                return ManifestCommit(
                    kind="append",
                    time_ms=time.time_ns() // 1_000_000,
                    add=tuple(files),
                    covered=tuple(covered),
                    gaps=tuple(gaps),
                    query=(self.generation.note.query, batch),
                    topics=news(now, topics),
                )

            self.summary.commit = self.archive.commit(build).number
        self._report(batch, files, gaps, time.monotonic() - started)

    def _look(
        self, state: ArchiveState, wanted: Sequence[Wanted]
    ) -> tuple[Mapping[str, TopicInfo], Mapping[TopicPartition, int]]:
        """The topics and where their logs start, now that all is read: it was theirs if they are still the same."""
        partitions = [one.partition for one in wanted]
        names = sorted({partition.topic for partition in partitions})
        committed_only = self.generation.note.committed_only

        def question(
            cluster: Cluster,
        ) -> tuple[Mapping[str, TopicInfo], Mapping[TopicPartition, int], Mapping[TopicPartition, int]]:
            topics = cluster.topics(names)
            if len(topics) < len(names):
                raise Changed(f"topics were deleted while they were archived: {', '.join(set(names) - set(topics))}")
            return topics, cluster.beginnings(partitions), cluster.ends(partitions, committed_only)

        topics, log_starts, _ = self.brokers.settled(
            question, lambda answer: require_whole_logs({one.partition: one.end for one in wanted}, answer[2])
        )
        require_same_topics(state, topics)
        return topics, log_starts

    def _lost(
        self,
        state: ArchiveState,
        files: Sequence[DataFile],
        wanted: Sequence[Wanted],
        log_starts: Mapping[TopicPartition, int],
    ) -> dict[TopicPartition, list[OffsetRange]]:
        result = {}
        for one in wanted:
            start = log_starts[one.partition]
            if needs_search(one, start, files):
                jumps = self._jumps(state, files, one)
                result[one.partition] = holes(one, start, jumps)
            else:
                result[one.partition] = gone(one, start)
        return result

    def _jumps(self, state: ArchiveState, files: Sequence[DataFile], wanted: Wanted) -> list[OffsetRange]:
        from pyspark.sql import Window
        from pyspark.sql import functions as f

        from kbroker.pipeline.archive.dataframe import archive_dataframe

        topic, partition = wanted.partition
        mine = [file for file in files if file.topic == topic]
        rows = archive_dataframe(self.spark, self.archive, state, mine).where(f.col("partition") == partition)
        before = f.lag("offset", 1, wanted.start - 1).over(Window.orderBy("offset"))
        pairs = rows.select(before.alias("before"), "offset").where("offset > before + 1").collect()
        last = max(part.last for file in mine for part in file.parts if part.partition == partition)
        return [*(OffsetRange(row.before, row.offset) for row in pairs), OffsetRange(last, wanted.end)]

    def _report(self, batch: int, files: Sequence[DataFile], gaps: Sequence[Gap], seconds: float) -> None:
        self.summary.add(files)
        self.summary.gaps += gaps
        for gap in gaps:
            self.tell.warn(gap_text(gap))
        records = sum(file.rows for file in files)
        size = sum(file.size for file in files)
        rate = f"{records / seconds:,.0f} records/s" if seconds > 0 else ""
        self.tell.progress(
            f"batch {batch}: {records:,} records in {len(files)} files of {size:,} bytes in {seconds:.1f} s ({rate})"
        )


def _without(archive_dataframe: "DataFrame", below: Mapping[TopicPartition, int]) -> "DataFrame":
    """A batch without what is below these offsets."""
    from pyspark.sql import functions as f

    for (topic, partition), offset in below.items():
        mine = (f.col("topic") == topic) & (f.col("partition") == partition)
        archive_dataframe = archive_dataframe.where(~(mine & (f.col("offset") < offset)))
    return archive_dataframe


def _require_within(files: Sequence[DataFile], wanted: Sequence[Wanted]) -> None:
    """What was written is what the commit will say; anything else is a fault of Spark's, or of ours."""
    ranges = {one.partition: one for one in wanted}
    for file in files:
        for part in file.parts:
            one = ranges.get(TopicPartition(file.topic, part.partition))
            if one is None or part.first < one.start or part.last >= one.end:
                raise PipelineError(
                    f"{file.topic}-{part.partition}: Spark read offsets {part.first} to {part.last}, which are not of "
                    f"the batch; nothing of it is archived"
                )


def require_unchanged(
    resume: Mapping[TopicPartition, int], now: ArchiveState, partitions: Sequence[TopicPartition]
) -> None:
    """PipelineError where somebody else has archived the partitions since `resume` was taken."""
    newer = resume_offsets(now)
    for partition in partitions:
        if newer.get(partition) != resume.get(partition):
            raise PipelineError(
                f"another `kbroker archive run` has archived {partition.topic}-{partition.partition} meanwhile: "
                f"only one may write to an archive; this one ends, and nothing is there twice"
            )


def require_same_topics(state: ArchiveState, topics: Mapping[str, TopicInfo]) -> None:
    """PipelineError where a topic was deleted and created again since it was archived."""
    for name, info in topics.items():
        known = state.topics.get(name)
        if known is not None and known.topic_id and info.topic_id and known.topic_id != info.topic_id:
            raise PipelineError(
                f"topic {name} was deleted and created again since it was archived (its id was {known.topic_id} and is "
                f"{info.topic_id}), so its offsets begin anew: archive it into another directory"
            )


def news(state: ArchiveState, topics: Mapping[str, TopicInfo]) -> dict[str, Any] | None:
    """The topics that are not as the archive knows them."""
    return {name: info for name, info in topics.items() if state.topics.get(name) != info} or None


def gap_text(gap: Gap) -> str:
    """A gap as a sentence."""
    return (
        f"{gap.topic}-{gap.partition}: offsets {gap.start} to {gap.end - 1} ({gap.end - gap.start:,}) were gone before "
        f"they could be archived: the log starts after them ({gap.reason})"
    )
