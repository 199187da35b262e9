"""Which records of an archive are replayed, and which of its files can hold them.

Times are milliseconds since 1970, ranges [start, end).
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from kbroker.common import TopicPartition
from kbroker.pipeline.archive.manifest.model import ArchiveState, DataFile, PartitionStats
from kbroker.pipeline.errors import PipelineError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

# topic -> partition -> the offset up to which, not itself included, records are replayed
Limits = Mapping[str, Mapping[int, int]]

_RANGE = re.compile(r"(\d+):(\d*)-(\d*)", re.ASCII)


@dataclass(frozen=True)
class Selection:
    """What a user asks for; what is not said selects everything."""

    topics: tuple[str, ...]
    from_ms: int | None = None
    until_ms: int | None = None
    offsets: tuple[tuple[int, int, int | None], ...] = ()  # (partition, start, end): these partitions alone
    partitions: tuple[int, ...] = ()
    key: str | None = None
    key_regex: str | None = None  # found anywhere in the key's text, in Java's syntax
    headers: tuple[tuple[str, str | None], ...] = ()  # (name, value or None for any): all of them are needed

    @property
    def reads_records(self) -> bool:
        """Whether the records themselves have to be looked at, not only where and when they are."""
        return self.key is not None or self.key_regex is not None or bool(self.headers)

    def takes_partition(self, partition: int) -> bool:
        ranged = {number for number, _, _ in self.offsets}
        return (not ranged or partition in ranged) and (not self.partitions or partition in self.partitions)

    def ranges(self, partition: int) -> list[tuple[int, int | None]]:
        """The offsets that are wanted of a partition, [] for all."""
        return [(start, end) for number, start, end in self.offsets if number == partition]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Selection":
        lists = {name: tuple(data[name]) for name in ("topics", "partitions")}
        pairs = {name: tuple(tuple(item) for item in data[name]) for name in ("offsets", "headers")}
        return cls(**{**data, **lists, **pairs})


def offset_range(text: str) -> tuple[int, int, int | None]:
    """`PARTITION:START-END`; either end may be left out, END is not included."""
    match = _RANGE.fullmatch(text)
    if match is None or not (match[2] or match[3]):
        raise PipelineError(f"a range of offsets is PARTITION:START-END, not {text!r}")
    start, end = int(match[2] or 0), int(match[3]) if match[3] else None
    if end is not None and start >= end:
        raise PipelineError(f"the range of offsets {text} is empty: END is not included")
    return int(match[1]), start, end


def check_regex(spark: "SparkSession", regex: str) -> None:
    """Raises PipelineError for what Java does not take."""
    from pyspark.errors import PySparkException
    from pyspark.sql import functions as f

    try:
        spark.range(1).select(f.col("id").cast("string").rlike(regex)).collect()
    except PySparkException:
        raise PipelineError(f"{regex!r} is no regular expression as Java has them") from None


def limits(state: ArchiveState, topics: Iterable[str]) -> dict[str, dict[int, int]]:
    """Where the archive ends now, for each partition that it has something of."""
    found: dict[str, dict[int, int]] = {topic: {} for topic in topics}
    for (topic, partition), spans in sorted(state.covered.items()):
        if topic in found:
            found[topic][partition] = spans[-1].end
    return found


def pruned(state: ArchiveState, selection: Selection, upto: Limits) -> list[DataFile]:
    """The files that can hold records of the selection, by what the manifest says of their parts."""
    return [file for file in state.files.values() if wanted_parts(file, selection, upto)]


def wanted_parts(file: DataFile, selection: Selection, upto: Limits) -> list[PartitionStats]:
    """The parts of a file that can hold records of the selection."""
    if file.topic not in selection.topics:
        return []
    return [part for part in file.parts if _can_hold(part, selection, upto[file.topic].get(part.partition, 0))]


def _can_hold(part: PartitionStats, selection: Selection, limit: int) -> bool:
    if not selection.takes_partition(part.partition) or part.first >= limit:
        return False
    if selection.from_ms is not None and part.to_ms < selection.from_ms:
        return False
    if selection.until_ms is not None and part.from_ms >= selection.until_ms:
        return False
    ranges = selection.ranges(part.partition)
    return not ranges or any(part.last >= start and (end is None or part.first < end) for start, end in ranges)


def whole(part: PartitionStats, selection: Selection, limit: int) -> bool:
    """Whether every row of a part that can hold records of the selection is one of them."""
    if selection.reads_records or part.last >= limit:
        return False
    if selection.from_ms is not None and part.from_ms < selection.from_ms:
        return False
    if selection.until_ms is not None and part.to_ms >= selection.until_ms:
        return False
    ranges = selection.ranges(part.partition)
    return not ranges or any(part.first >= start and (end is None or part.last < end) for start, end in ranges)


def selected(frame: "DataFrame", selection: Selection, upto: Limits, files: Iterable[DataFile]) -> "DataFrame":
    """The rows of the selection, out of the rows of these files."""
    from pyspark.sql import functions as f

    for condition in _conditions(selection):
        frame = frame.where(condition)
    beyond = {
        TopicPartition(file.topic, part.partition)
        for file in files
        for part in file.parts
        if part.last >= upto[file.topic].get(part.partition, 0)
    }
    for topic, partition in sorted(beyond):
        one = (f.col("topic") == topic) & (f.col("partition") == partition)
        frame = frame.where(~one | (f.col("offset") < upto[topic].get(partition, 0)))
    return frame


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
        yield _any_of([_in_range(*one) for one in selection.offsets])
    if selection.key is not None:
        yield f.col("key") == f.lit(bytearray(selection.key.encode(errors="surrogateescape")))
    if selection.key_regex is not None:
        # As text key bytes that are no UTF-8 become replacement characters; nothing fails.
        yield f.col("key").cast("string").rlike(selection.key_regex)
    for name, value in selection.headers:
        yield _has_header(name, value)


def _in_range(partition: int, start: int, end: int | None) -> "Column":
    from pyspark.sql import functions as f

    inside = (f.col("partition") == partition) & (f.col("offset") >= start)
    return inside if end is None else inside & (f.col("offset") < end)


def _any_of(conditions: "list[Column]") -> "Column":
    found = conditions[0]
    for condition in conditions[1:]:
        found = found | condition
    return found


def _has_header(name: str, value: str | None) -> "Column":
    from pyspark.sql import functions as f

    def matches(header: "Column") -> "Column":
        if value is None:
            return header["key"] == f.lit(name)
        content = f.lit(bytearray(value.encode(errors="surrogateescape")))
        return (header["key"] == f.lit(name)) & header["value"].eqNullSafe(content)

    return f.exists(f.col("headers"), matches)
