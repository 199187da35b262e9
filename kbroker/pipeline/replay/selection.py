"""Selects the archived records of a replay, and the data files that can contain them.

Times are milliseconds since 1970; ranges are [start, end).
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kbroker.common import TopicPartition
from kbroker.pipeline.archive.manifest.model import ArchiveState, DataFile, PartitionStats
from kbroker.pipeline.errors import PipelineError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

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
        """Whether a condition depends on the records' content, which manifests do not describe."""
        return self.key is not None or self.key_regex is not None or bool(self.headers)

    def includes_partition(self, partition: int) -> bool:
        with_ranges = {number for number, _, _ in self.offsets}
        return (not with_ranges or partition in with_ranges) and (not self.partitions or partition in self.partitions)

    def ranges(self, partition: int) -> list[tuple[int, int | None]]:
        """Return the selected offset ranges of a partition; empty if all its offsets are selected."""
        return [(start, end) for number, start, end in self.offsets if number == partition]

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Selection":
        """Read a selection that was written as JSON by dataclasses.asdict."""
        lists = {name: tuple(data[name]) for name in ("topics", "partitions")}
        pairs = {name: tuple(tuple(item) for item in data[name]) for name in ("offsets", "headers")}
        return cls(**{**data, **lists, **pairs})


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
    from pyspark.sql import functions as f

    try:
        spark.range(1).select(f.col("id").cast("string").rlike(regex)).collect()
    except PySparkException:
        raise PipelineError(f"{regex!r} is not a Java regular expression") from None


def archived_ends(state: ArchiveState, topics: Iterable[str]) -> dict[str, dict[int, int]]:
    """Return the end offset of each archived partition of these topics."""
    ends: dict[str, dict[int, int]] = {topic: {} for topic in topics}
    for (topic, partition), ranges in sorted(state.covered.items()):
        if topic in ends:
            ends[topic][partition] = ranges[-1].end
    return ends


def matching_files(state: ArchiveState, selection: Selection, end_offsets: EndOffsets) -> list[DataFile]:
    """Return the files that can contain selected records, according to the manifest."""
    return [file for file in state.files.values() if matching_parts(file, selection, end_offsets)]


def matching_parts(file: DataFile, selection: Selection, end_offsets: EndOffsets) -> list[PartitionStats]:
    """Return the partitions of a file that can have selected records in it."""
    if file.topic not in selection.topics:
        return []
    ends = end_offsets[file.topic]
    return [part for part in file.partitions if _can_match(part, selection, ends.get(part.partition, 0))]


def _can_match(part: PartitionStats, selection: Selection, end_offset: int) -> bool:
    if not selection.includes_partition(part.partition) or part.first >= end_offset:
        return False
    if selection.from_ms is not None and part.to_ms < selection.from_ms:
        return False
    if selection.until_ms is not None and part.from_ms >= selection.until_ms:
        return False
    ranges = selection.ranges(part.partition)
    return not ranges or any(part.last >= start and (end is None or part.first < end) for start, end in ranges)


def is_fully_selected(part: PartitionStats, selection: Selection, end_offset: int) -> bool:
    """Return whether every row of a part that `matching_parts` returned is selected."""
    if selection.reads_records or part.last >= end_offset:
        return False
    if selection.from_ms is not None and part.from_ms < selection.from_ms:
        return False
    if selection.until_ms is not None and part.to_ms >= selection.until_ms:
        return False
    ranges = selection.ranges(part.partition)
    return not ranges or any(part.first >= start and (end is None or part.last < end) for start, end in ranges)


def select_rows(
    rows: "DataFrame", selection: Selection, end_offsets: EndOffsets, files: Iterable[DataFile]
) -> "DataFrame":
    """Filter the rows of these files by the selection and the end offsets."""
    from pyspark.sql import functions as f

    for condition in _conditions(selection):
        rows = rows.where(condition)
    with_later_rows = {
        TopicPartition(file.topic, part.partition)
        for file in files
        for part in file.partitions
        if part.last >= end_offsets[file.topic].get(part.partition, 0)
    }
    for topic, partition in sorted(with_later_rows):
        is_partition = (f.col("topic") == topic) & (f.col("partition") == partition)
        rows = rows.where(~is_partition | (f.col("offset") < end_offsets[topic].get(partition, 0)))
    return rows


def _conditions(selection: Selection) -> "Iterable[Column]":
    from pyspark.sql import functions as f

    yield f.col("topic").isin(list(selection.topics))
    if selection.from_ms is not None:
        yield f.col("timestamp") >= f.timestamp_millis(f.lit(selection.from_ms))
    if selection.until_ms is not None:
        yield f.col("timestamp") < f.timestamp_millis(f.lit(selection.until_ms))
    if selection.partitions:
        yield f.col("partition").isin(list(selection.partitions))
    if selection.offsets:
        yield _any_of([_in_range(*bounds) for bounds in selection.offsets])
    if selection.key is not None:
        yield f.col("key") == f.lit(bytearray(selection.key.encode(errors="surrogateescape")))
    if selection.key_regex is not None:
        # The cast replaces bytes that are not UTF-8 and never fails.
        yield f.col("key").cast("string").rlike(selection.key_regex)
    for name, value in selection.headers:
        yield _has_header(name, value)


def _in_range(partition: int, start: int, end: int | None) -> "Column":
    from pyspark.sql import functions as f

    condition = (f.col("partition") == partition) & (f.col("offset") >= start)
    return condition if end is None else condition & (f.col("offset") < end)


def _any_of(conditions: "list[Column]") -> "Column":
    result = conditions[0]
    for condition in conditions[1:]:
        result = result | condition
    return result


def _has_header(name: str, value: str | None) -> "Column":
    from pyspark.sql import functions as f

    def matches(header: "Column") -> "Column":
        if value is None:
            return header["key"] == f.lit(name)
        content = f.lit(bytearray(value.encode(errors="surrogateescape")))
        return (header["key"] == f.lit(name)) & header["value"].eqNullSafe(content)

    return f.exists(f.col("headers"), matches)
