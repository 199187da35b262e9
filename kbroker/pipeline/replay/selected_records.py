"""The archived records that a replay selects, as a DataFrame: their targets, order, totals and group positions.

Targets are numbers here: indexes of `Routing.targets`.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from kbroker.common import TopicPartition
from kbroker.pipeline.archive.archive import Archive
from kbroker.pipeline.archive.dataframe import archive_dataframe
from kbroker.pipeline.archive.manifest.model import ArchiveState, DataFile
from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.replay.group_offsets import CommittedOffset, GroupPosition, with_uncommitted_sources
from kbroker.pipeline.replay.routing import Routing
from kbroker.pipeline.replay.selection import EndOffsets, Selection, matching_files, select_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession, WindowSpec

_SIZE_THREADS = 4


class RecordTotals(NamedTuple):
    """The records of one target: count, bytes of keys and values, earliest and latest timestamp."""

    rows: int
    size: int
    from_ms: int
    to_ms: int


@dataclass(frozen=True)
class SelectedRecords:
    """The records of an archive that a replay sends."""

    spark: "SparkSession"
    archive: Archive
    state: ArchiveState
    selection: Selection
    end_offsets: EndOffsets
    routing: Routing
    by_time: bool  # records of several source partitions meet in a target, and are ordered by time

    def files(self) -> list[DataFile]:
        return matching_files(self.state, self.selection, self.end_offsets)

    def require_files(self) -> None:
        """Raise PipelineError for a file that is missing or does not have its committed size.

        Spark would read no rows from an empty file, and block forever on a FIFO.
        """
        files, storage = self.files(), self.archive.storage
        with ThreadPoolExecutor(_SIZE_THREADS) as pool:
            for file, size in zip(files, pool.map(storage.size, [file.path for file in files]), strict=True):
                if size != file.size:
                    raise PipelineError(
                        f"{storage.uri(file.path)}: has {size} bytes instead of {file.size}; "
                        f"`kbroker archive verify` reports what is damaged"
                    )

    def frame(self) -> "DataFrame":
        """Return topic, partition, offset, timestamp (ms), key, value, headers and target."""
        from pyspark.sql import functions as f

        files = self.files()
        archived = archive_dataframe(self.spark, self.archive, self.state, files)
        return select_rows(archived, self.selection, self.end_offsets, files).select(
            "topic",
            "partition",
            "offset",
            f.unix_millis("timestamp").alias("timestamp"),
            "key",
            "value",
            "headers",
            self.routing.target_column().alias("target"),
        )

    def with_due(self, rows: "DataFrame") -> "DataFrame":
        """Add `due`: the latest timestamp so far in the record's source partition, in milliseconds.

        It never decreases with the offset, so ordering by it keeps the order within a partition.
        """
        from pyspark.sql import Window
        from pyspark.sql import functions as f

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
        from pyspark.sql import functions as f

        rows = self.frame().drop("value", "headers")
        rows = self.with_due(rows) if self.by_time or needs_due else rows.withColumn("due", f.col("timestamp"))
        window: WindowSpec = Window.partitionBy("target").orderBy(*self.order)
        return rows.withColumn("position", f.row_number().over(window) - 1)

    def totals(self) -> dict[TopicPartition, RecordTotals]:
        """Count the records of each target that gets any. Runs a Spark job."""
        from pyspark.sql import functions as f

        size = f.coalesce(f.octet_length("key"), f.lit(0)) + f.coalesce(f.octet_length("value"), f.lit(0))
        columns = (f.count("*"), f.sum(size.cast("bigint")), f.min("timestamp"), f.max("timestamp"))
        rows = self.frame().groupBy("target").agg(*columns).collect()
        targets = self.routing.targets
        return {targets[number]: RecordTotals(*values) for number, *values in sorted(rows, key=lambda row: int(row[0]))}

    def group_positions(
        self, committed: Sequence[CommittedOffset], counts: Mapping[TopicPartition, int]
    ) -> list[GroupPosition]:
        """Return where each group continues in each target: at the first record that it had not committed.

        `counts`: the records of each target. Runs a Spark job unless `committed` is empty.
        """
        from pyspark.sql import functions as f

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
