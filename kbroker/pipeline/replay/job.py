"""The Spark jobs of a replay: what is selected, where groups stand in it, and sending it."""

import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from kbroker.common import TopicPartition
from kbroker.pipeline.archive.archive import Archive
from kbroker.pipeline.archive.dataframe import archive_dataframe
from kbroker.pipeline.archive.manifest.model import ArchiveState, DataFile
from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.replay.encoding import Target
from kbroker.pipeline.replay.groups import Committed, Placed, bounding
from kbroker.pipeline.replay.routing import Routing, spread
from kbroker.pipeline.replay.selection import Limits, Selection, pruned, selected
from kbroker.pipeline.replay.task import OUTCOME, Paced, Settings, send
from kbroker.pipeline.spark.tasks import task_keys

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession, WindowSpec
    from pyspark.sql import Row as SparkRow

# Arrow's batches hold about so many bytes, so that neither side of the pipe has to keep much.
ARROW_BYTES = 4 << 20
ARROW_ROWS = 10_000
START_S = 0.5
THREADS = 4


class Amount(NamedTuple):
    """Records of one target: their number, bytes of keys and values, and times in ms."""

    rows: int
    size: int
    from_ms: int
    to_ms: int


class Outcome(NamedTuple):
    """Of one target: how many records of the replay it had before, and has now."""

    had: int
    has: int


@dataclass(frozen=True)
class Rows:
    """The selected rows of an archive, and where they go."""

    spark: "SparkSession"
    archive: Archive
    state: ArchiveState
    selection: Selection
    limits: Limits
    routing: Routing
    by_time: bool

    def files(self) -> list[DataFile]:
        return pruned(self.state, self.selection, self.limits)

    def require_files(self) -> None:
        """Raises PipelineError where a file is not there, or has not the size that was committed: Spark reads no rows
        of an empty file, and blocks for ever on a FIFO."""
        files, storage = self.files(), self.archive.storage
        with ThreadPoolExecutor(THREADS) as pool:
            for file, size in zip(files, pool.map(storage.size, [file.path for file in files]), strict=True):
                if size != file.size:
                    what = f"has {size} bytes instead of {file.size}; `kbroker archive verify` reports what is damaged"
                    raise PipelineError(f"{storage.uri(file.path)}: {what}")

    def frame(self) -> "DataFrame":
        """topic, partition, offset, timestamp (ms), key, value, headers and the number of the target."""
        from pyspark.sql import functions as f

        files = self.files()
        rows = selected(
            archive_dataframe(self.spark, self.archive, self.state, files), self.selection, self.limits, files
        )
        return rows.select(
            "topic",
            "partition",
            "offset",
            f.unix_millis("timestamp").alias("timestamp"),
            "key",
            "value",
            "headers",
            self.routing.column().alias("target"),
        )

    def with_dues(self, rows: "DataFrame") -> "DataFrame":
        """With `due`, in ms: the latest timestamp so far in the record's own partition, so that by it time does not
        go back and records of a partition keep their order."""
        from pyspark.sql import Window
        from pyspark.sql import functions as f

        by_offset = Window.partitionBy("topic", "partition").orderBy("offset")
        so_far = by_offset.rowsBetween(Window.unboundedPreceding, Window.currentRow)
        return rows.withColumn("due", f.max("timestamp").over(so_far))

    @property
    def order(self) -> list[str]:
        """What records of one target are ordered by."""
        return ["due", "topic", "partition", "offset"] if self.by_time else ["topic", "partition", "offset"]

    def numbered(self, timed: bool = False) -> "DataFrame":
        """With `position`: how many records of the replay its target has before it; `timed`: with dues as well."""
        from pyspark.sql import Window
        from pyspark.sql import functions as f

        rows = self.frame().drop("value", "headers")
        rows = self.with_dues(rows) if self.by_time or timed else rows.withColumn("due", f.col("timestamp"))
        window: WindowSpec = Window.partitionBy("target").orderBy(*self.order)
        return rows.withColumn("position", f.row_number().over(window) - 1)


def amounts(rows: Rows) -> dict[Target, Amount]:
    """What each target is to get; those that get nothing are left out."""
    from pyspark.sql import functions as f

    size = f.coalesce(f.octet_length("key"), f.lit(0)) + f.coalesce(f.octet_length("value"), f.lit(0))
    times = (f.min("timestamp"), f.max("timestamp"))
    found = rows.frame().groupBy("target").agg(f.count("*"), f.sum(size.cast("bigint")), *times).collect()
    targets = rows.routing.targets
    return {targets[number]: Amount(*values) for number, *values in sorted(found, key=_number)}


def _number(row: "SparkRow") -> int:
    return int(row[0])


def places(rows: Rows, committed: Sequence[Committed], counts: Mapping[Target, int]) -> list[Placed]:
    """Where groups stand: before the first record that they had not committed, of all sources of a target."""
    from pyspark.sql import functions as f

    if not committed:
        return []
    columns = "group string, topic string, partition int, committed bigint"
    sources = [TopicPartition(topic, number) for topic, ends in rows.limits.items() for number in ends]
    bounds = bounding(committed, sources, rows.routing)
    offsets = rows.spark.createDataFrame([(one.group, *one.source, one.offset) for one in bounds], columns)
    joined = rows.numbered().join(f.broadcast(offsets), ["topic", "partition"])
    joined = joined.where(f.col("offset") >= f.col("committed"))
    firsts = joined.groupBy("group", "target").agg(f.min("position").alias("position")).collect()
    found = {(row["group"], row["target"]): row["position"] for row in firsts}
    targets = rows.routing.targets
    placed = {}
    for one in committed:
        for number in rows.routing.fed_by(one.source):
            end = counts.get(targets[number], 0)
            placed[one.group, number] = found.get((one.group, number), end)
    return [Placed(group, targets[number], position) for (group, number), position in sorted(placed.items())]


class Limit(NamedTuple):
    """How quickly: at most one of them is given."""

    rate: float | None = None  # records/s in all
    speed: float | None = None  # times real time


def deliver(
    rows: Rows, settings: Settings, counts: Mapping[Target, int], had: Mapping[Target, int], limit: Limit, mean: int
) -> dict[Target, Outcome]:
    """Sends everything that the targets have not got yet, and says what became of each of these.

    `counts`: what each target is to have in the end; `had`: what it has, at least. `mean`: bytes of a record. Raises
    PipelineError for what a task could not do; what Spark raises goes through.
    """
    from pyspark.sql import functions as f

    left = {number: counts.get(target, 0) - had.get(target, 0) for number, target in enumerate(settings.targets)}
    left = {number: count for number, count in left.items() if count > 0}
    if not left:
        return {}
    tasks = min(len(left), rows.spark.sparkContext.defaultParallelism)
    task_of = spread(left, tasks)
    keys = task_keys(rows.spark, tasks)
    key_of = _literal_map({number: keys[task] for number, task in task_of.items()})
    found = rows.frame().where(f.col("target").isin(list(left)))
    timed = rows.by_time or limit.speed is not None
    found = rows.with_dues(found) if timed else found.withColumn("due", f.col("timestamp"))
    order = ["due", "target", "topic", "partition", "offset"] if limit.speed else ["target", *rows.order]
    found = found.repartition(tasks, f.element_at(key_of, f.col("target")).cast("bigint")).sortWithinPartitions(*order)
    if limit.speed is not None:
        return _run_at_speed(found, settings, limit.speed, _origin(rows, left, counts), mean)
    return _run(found, _paced_by_rate(settings, left, task_of, limit.rate), mean)


def _run_at_speed(
    found: "DataFrame", settings: Settings, speed: float, origin_ms: int, mean: int
) -> dict[Target, Outcome]:
    """The clock starts when the rows are in their order, not while Spark still sorts them."""
    from pyspark import StorageLevel

    found = found.persist(StorageLevel.DISK_ONLY)
    try:
        found.count()
        paced = Paced(speed=speed, begin_s=time.time() + START_S, origin_ms=origin_ms)
        return _run(found, replace(settings, paced=paced), mean)
    finally:
        found.unpersist()


def _origin(rows: Rows, left: Mapping[int, int], counts: Mapping[Target, int]) -> int:
    """When the first of the records that are left is due, in ms."""
    from pyspark.sql import functions as f

    targets = rows.routing.targets
    had = {number: counts[targets[number]] - count for number, count in left.items()}
    numbered = rows.numbered(timed=True).where(f.col("target").isin(list(left)))
    row = (
        numbered.where(f.col("position") >= f.element_at(_literal_map(had), f.col("target"))).agg(f.min("due")).first()
    )
    if row is None or row[0] is None:
        raise PipelineError("the archive has fewer records of the replay than when it was planned")
    return int(row[0])


def _literal_map(numbers: Mapping[int, int]) -> "Column":
    from pyspark.sql import functions as f

    return f.create_map(*(f.lit(part) for pair in numbers.items() for part in pair))


def _paced_by_rate(
    settings: Settings, left: Mapping[int, int], task_of: Mapping[int, int], rate: float | None
) -> Settings:
    """Every task gets the part of the rate that it has of the records, so that all end together."""
    if rate is None:
        return settings
    loads: dict[int, int] = {}
    for number, count in left.items():
        loads[task_of[number]] = loads.get(task_of[number], 0) + count
    total = sum(loads.values())
    return replace(settings, paced=Paced(rates={n: rate * loads[task_of[n]] / total for n in left}))


def _run(found: "DataFrame", settings: Settings, mean: int) -> dict[Target, Outcome]:
    session = found.sparkSession
    name = "spark.sql.execution.arrow.maxRecordsPerBatch"
    before = session.conf.get(name)
    session.conf.set(name, str(max(1, min(ARROW_ROWS, ARROW_BYTES // max(1, mean)))))
    try:
        outcomes = found.mapInArrow(partial(send, settings=settings), OUTCOME).collect()
    finally:
        if before is not None:
            session.conf.set(name, before)
    _raise_first(outcomes)
    return {settings.targets[row["target"]]: Outcome(row["had"], row["has"]) for row in outcomes}


def _raise_first(outcomes: "Iterable[SparkRow]") -> None:
    errors = [row["error"] for row in outcomes if row["error"]]
    if errors:
        raise PipelineError(errors[0])
