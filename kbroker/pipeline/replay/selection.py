"""The archived records that a replay selects: the data files that can contain them, and a DataFrame of them.

Times are milliseconds since 1970; ranges are [start, end). Targets are numbers: indexes of `Routing.targets`.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, NamedTuple

from kbroker.archive.data_files import DataFile
from kbroker.archive.offset_ranges import OffsetRange, intersect_ranges
from kbroker.common import TopicPartition
from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.replay.archived_rows import ROWS_SCHEMA, ReplayedTopic, require_files, rows_frame
from kbroker.pipeline.replay.group_offsets import CommittedOffset, GroupPosition, with_uncommitted_sources
from kbroker.pipeline.replay.routing import Routing
from kbroker.pipeline.spark import functions as f

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession, WindowSpec


# topic -> partition -> offset: only records below it are replayed
EndOffsets = Mapping[str, Mapping[int, int]]

_OFFSET_RANGE = re.compile(r"(\d+):(\d*)-(\d*)", re.ASCII)


@dataclass(frozen=True)
class Selection:
    """The conditions that a record must meet. The defaults select everything."""

    topics: tuple[str, ...]
    from_ms: int | None = None
    until_ms: int | None = None
    offsets: tuple[tuple[int, int, int | None], ...] = ()  # (partition, start, end): only these ranges
    partitions: tuple[int, ...] = ()
    key: str | None = None
    key_regex: str | None = None  # in Java's syntax, found anywhere in the key's text
    headers: tuple[tuple[str, str | None], ...] = ()  # (name, value, or None for any value): all are required

    @property
    def reads_records(self) -> bool:
        """Whether a condition depends on the records' content, which the metadata of files does not describe."""
        return self.key is not None or self.key_regex is not None or bool(self.headers)

    def includes_partition(self, partition: int) -> bool:
        with_ranges = {number for number, _, _ in self.offsets}
        return (not with_ranges or partition in with_ranges) and (not self.partitions or partition in self.partitions)


def parse_offset_range(text: str) -> tuple[int, int, int | None]:
    """Parse `PARTITION:START-END`; one of START and END may be absent. Raises PipelineError."""
    match = _OFFSET_RANGE.fullmatch(text)
    if match is None or not (match[2] or match[3]):
        raise PipelineError(f"an offset range must be PARTITION:START-END, not {text!r}")
    start, end = int(match[2] or 0), int(match[3]) if match[3] else None
    if end is not None and start >= end:
        raise PipelineError(f"the offset range {text} is empty: END is exclusive")
    return int(match[1]), start, end


def check_regex(spark: "SparkSession", regex: str) -> None:
    """Raise PipelineError for a regular expression that Java rejects."""
    from pyspark.errors import PySparkException

    try:
        spark.range(1).select(f.col("id").cast("string").rlike(regex)).collect()
    except PySparkException:
        raise PipelineError(f"{regex!r} is not a Java regular expression") from None


def archived_ends(topics: Mapping[str, ReplayedTopic]) -> dict[str, dict[int, int]]:
    """Return the end offset of each archived partition of these topics."""
    return {
        topic: {partition: ranges[-1].end for partition, ranges in sorted(archived.state.covered.items()) if ranges}
        for topic, archived in topics.items()
    }


def matching_files(
    topics: Mapping[str, ReplayedTopic], selection: Selection, end_offsets: EndOffsets
) -> dict[str, list[DataFile]]:
    """Return the files of each topic that can contain selected records, according to their metadata."""
    return {
        topic: [
            file
            for file in archived.files
            if _can_match(file, selection, end_offsets.get(topic, {}).get(file.partition, 0))
        ]
        for topic, archived in topics.items()
        if topic in selection.topics
    }


def _can_match(file: DataFile, selection: Selection, end_offset: int) -> bool:
    is_too_old = selection.from_ms is not None and file.to_ms < selection.from_ms
    is_too_new = selection.until_ms is not None and file.from_ms >= selection.until_ms
    if is_too_old or is_too_new or not selection.includes_partition(file.partition):
        return False
    return bool(intersect_ranges([file.offsets], _selected_offsets(file, selection, end_offset)))


def is_fully_selected(file: DataFile, selection: Selection, end_offset: int) -> bool:
    """Return whether every row of a file that `matching_files` returned is selected."""
    has_older = selection.from_ms is not None and file.from_ms < selection.from_ms
    has_newer = selection.until_ms is not None and file.to_ms >= selection.until_ms
    if has_older or has_newer or selection.reads_records:
        return False
    ranges = _selected_offsets(file, selection, end_offset)
    return any(start <= file.first and file.last < end for start, end in ranges)


def _selected_offsets(file: DataFile, selection: Selection, end_offset: int) -> list[OffsetRange]:
    ranges = [(start, end) for number, start, end in selection.offsets if number == file.partition] or [(0, None)]
    return [OffsetRange(start, end_offset if end is None else min(end, end_offset)) for start, end in ranges]


def select_rows(
    rows: "DataFrame", selection: Selection, end_offsets: EndOffsets, files: Mapping[str, Iterable[DataFile]]
) -> "DataFrame":
    """Filter the rows of these files by the selection and the end offsets."""
    for condition in _conditions(selection):
        rows = rows.where(condition)
    with_later_rows = {
        TopicPartition(topic, file.partition)
        for topic, of_topic in files.items()
        for file in of_topic
        if file.last >= end_offsets[topic].get(file.partition, 0)
    }
    for topic, partition in sorted(with_later_rows):
        is_partition = (f.col("topic") == topic) & (f.col("partition") == partition)
        rows = rows.where(~is_partition | (f.col("offset") < end_offsets[topic].get(partition, 0)))
    return rows


def _conditions(selection: Selection) -> "Iterable[Column]":
    if selection.from_ms is not None:
        yield f.col("timestamp") >= f.lit(selection.from_ms)
    if selection.until_ms is not None:
        yield f.col("timestamp") < f.lit(selection.until_ms)
    if selection.partitions:
        yield f.col("partition").isin(list(selection.partitions))
    if selection.offsets:
        yield reduce(or_, (_in_range(*bounds) for bounds in selection.offsets))
    if selection.key is not None:
        yield f.col("key") == f.lit(bytearray(selection.key.encode(errors="surrogateescape")))
    if selection.key_regex is not None:
        # The cast replaces bytes that are not UTF-8 and never fails.
        yield f.col("key").cast("string").rlike(selection.key_regex)
    for name, value in selection.headers:
        yield _has_header(name, value)


def _in_range(partition: int, start: int, end: int | None) -> "Column":
    condition = (f.col("partition") == partition) & (f.col("offset") >= start)
    return condition if end is None else condition & (f.col("offset") < end)


def _has_header(name: str, value: str | None) -> "Column":
    def matches(header: "Column") -> "Column":
        if value is None:
            return header["key"] == f.lit(name)
        content = f.lit(bytearray(value.encode(errors="surrogateescape")))
        return (header["key"] == f.lit(name)) & header["value"].eqNullSafe(content)

    return f.exists(f.col("headers"), matches)


class RecordTotals(NamedTuple):
    """The records of one target: count, earliest and latest timestamp."""

    rows: int
    from_ms: int
    to_ms: int


@dataclass(frozen=True)
class SelectedRecords:
    """The records of an archive that a replay sends."""

    spark: "SparkSession"
    topics: Mapping[str, ReplayedTopic]
    selection: Selection
    end_offsets: EndOffsets
    routing: Routing
    by_time: bool  # records of several source partitions meet in a target, and are ordered by time

    def files(self) -> dict[str, list[DataFile]]:
        return matching_files(self.topics, self.selection, self.end_offsets)

    def require_files(self) -> None:
        """Raise PipelineError for a file that is missing or does not have its committed size."""
        require_files(self.topics, self.files())

    def frame(self, *omitted: str) -> "DataFrame":
        """Return topic, partition, offset, timestamp (ms), key, value, headers and target.

        `omitted`: value or headers, or both, which take most of the time to read.
        """
        files = self.files()
        if self.selection.headers:
            omitted = tuple(name for name in omitted if name != "headers")
        columns = [name for name in ROWS_SCHEMA if name not in omitted]
        rows = rows_frame(self.spark, self.topics, files, columns)
        selected = select_rows(rows, self.selection, self.end_offsets, files)
        return selected.withColumn("target", self.routing.target_column())

    def with_due(self, rows: "DataFrame") -> "DataFrame":
        """Add `due`: the latest timestamp so far in the record's source partition, in milliseconds.

        It never decreases with the offset, so ordering by it keeps the order within a partition.
        """
        from pyspark.sql import Window

        by_offset = Window.partitionBy("topic", "partition").orderBy("offset")
        so_far = by_offset.rowsBetween(Window.unboundedPreceding, Window.currentRow)
        return rows.withColumn("due", f.max("timestamp").over(so_far))

    @property
    def order(self) -> list[str]:
        """The columns that order the records of one target."""
        return ["due", "topic", "partition", "offset"] if self.by_time else ["topic", "partition", "offset"]

    def with_positions(self, needs_due: bool = False) -> "DataFrame":
        """Return `frame` without value and headers, with `position`: the record's index within its target."""
        from pyspark.sql import Window

        rows = self.frame("value", "headers").drop("headers")
        rows = self.with_due(rows) if self.by_time or needs_due else rows.withColumn("due", f.col("timestamp"))
        window: WindowSpec = Window.partitionBy("target").orderBy(*self.order)
        return rows.withColumn("position", f.row_number().over(window) - 1)

    def totals(self) -> dict[TopicPartition, RecordTotals]:
        """Count the records of each target that gets any. Runs a Spark job."""
        columns = (f.count("*"), f.min("timestamp"), f.max("timestamp"))
        rows = self.frame("value", "headers").groupBy("target").agg(*columns).collect()
        targets = self.routing.targets
        return {targets[number]: RecordTotals(*values) for number, *values in sorted(rows, key=lambda row: int(row[0]))}

    def group_positions(
        self, committed: Sequence[CommittedOffset], counts: Mapping[TopicPartition, int]
    ) -> list[GroupPosition]:
        """Return where each group continues in each target: at the first record that it had not committed.

        `counts`: the records of each target. Runs a Spark job unless `committed` is empty.
        """
        if not committed:
            return []
        sources = [TopicPartition(topic, number) for topic, ends in self.end_offsets.items() for number in ends]
        bounds = with_uncommitted_sources(committed, sources, self.routing)
        offsets = self.spark.createDataFrame(
            [(bound.group, *bound.source, bound.offset) for bound in bounds],
            "group string, topic string, partition int, committed bigint",
        )
        uncommitted = (
            self.with_positions()
            .join(f.broadcast(offsets), ["topic", "partition"])
            .where(f.col("offset") >= f.col("committed"))
        )
        rows = uncommitted.groupBy("group", "target").agg(f.min("position").alias("position")).collect()
        first_uncommitted = {(row["group"], row["target"]): row["position"] for row in rows}
        targets = self.routing.targets
        positions = {
            (offset.group, number): first_uncommitted.get((offset.group, number), counts.get(targets[number], 0))
            for offset in committed
            for number in self.routing.targets_of(offset.source)
        }
        return [GroupPosition(group, targets[number], at) for (group, number), at in sorted(positions.items())]
