"""What Spark counts of an archive's rows: everything in one pass, and offsets where a pass has found something."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kbroker.common import TopicPartition
from kbroker.pipeline.archive import schema
from kbroker.pipeline.archive.archive import Archive
from kbroker.pipeline.archive.dataframe import archive_dataframe, read_parquet
from kbroker.pipeline.archive.manifest.model import ArchiveState, DataFile, OffsetRange
from kbroker.pipeline.archive.verification.findings import Finding, as_spans, difference, note
from kbroker.pipeline.archive.verification.rules import Measured, Scope

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

# Offsets that are looked at together: a difference is narrowed to so many before records are looked at one by one.
BUCKET = 100_000
# Of one kind of finding in one partition; what is more is counted.
TOLD = 1000
# 64 offsets are one number in which each has its bit.
_WORD = 6

# What `explain` says where a job failed for want of something.
_OF_THE_MACHINE = ("no space left on device", "ran out of memory")

# (Where the compared offsets begin, where they end) by partition.
Ranges = Mapping[TopicPartition, OffsetRange]


class Content:
    """Passes over the files of one state. Files that cannot be read are left out of every pass after the first."""

    def __init__(self, spark: "SparkSession", archive: Archive, state: ArchiveState, scope: Scope) -> None:
        self._spark = spark
        self._archive = archive
        self._state = state
        self._condition = condition(scope)
        self.unreadable: dict[str, Exception] = {}

    def measured(self, files: Sequence[DataFile], ranges: Ranges, check: Callable[[], None]) -> list[Measured]:
        """Every row of these files, counted; `ranges` are compared with the broker.

        A file that Spark cannot read is put into `unreadable` and the others are counted nevertheless. `check` is
        called before a failure is taken for the file's own: it raises when files may vanish.
        """
        if not files:
            return []
        try:
            return self._pass(files, ranges)
        except Exception as error:
            check()
            if not _is_of_files(error):
                raise
            if len(files) == 1:
                self.unreadable[files[0].path] = error
                return []
        half = len(files) // 2
        return self.measured(files[:half], ranges, check) + self.measured(files[half:], ranges, check)

    def _pass(self, files: Sequence[DataFile], ranges: Ranges) -> list[Measured]:
        from pyspark.sql import functions as f

        rows = self._rows(files).withColumn("bucket", f.expr(f"offset div {BUCKET}"))
        counted = self._marked(rows, ranges).groupBy("file_path", "partition", "bucket", "is_compared")
        misdated = f.expr(f"count_if(date IS NULL OR date <> {schema.DATE}) AS misdated")
        found = counted.agg(*map(f.expr, schema.PART_AGGREGATES), misdated).collect()
        paths = _Paths(files)
        return [_measured(row, paths[row.file_path]) for row in found]

    def _marked(self, rows: "DataFrame", ranges: Ranges) -> "DataFrame":
        """With the column `is_compared`."""
        from pyspark.sql import functions as f

        if not ranges:
            return rows.withColumn("is_compared", f.lit(False))
        listed = [(*at, *span) for at, span in ranges.items()]
        table = self._spark.createDataFrame(listed, "topic string, partition int, lo bigint, hi bigint")
        marked = rows.join(f.broadcast(table), ["topic", "partition"], "left")
        wanted = f.expr("coalesce(offset >= lo AND offset < hi, false)")
        return marked.withColumn("is_compared", wanted & f.expr(self._condition))

    def _rows(self, files: Iterable[DataFile]) -> "DataFrame":
        chosen = list(files)
        if not chosen:
            return self._spark.createDataFrame([], f"{schema.COLUMNS}, file_path string")
        rows = archive_dataframe(self._spark, self._archive, self._state, chosen)
        return rows.select(*schema.NAMES, "_metadata.file_path")

    def rows(self, files: Iterable[DataFile]) -> "DataFrame":
        """The rows of those of these files that can be read: schema.NAMES, and the URI as `file_path`."""
        return self._rows(file for file in files if file.path not in self.unreadable)

    def doubled(self, files: Sequence[DataFile]) -> list[Finding]:
        """Records that are in the files more than once, and in which ones.

        Of all rows only the offsets are read; of those around a doubled one, the files as well.
        """
        from pyspark.sql import functions as f

        rows = self.rows(files).select("topic", "partition", "offset", "file_path")
        word = f.expr(f"shiftright(offset, {_WORD})").alias("word")
        counted = rows.groupBy("topic", "partition", word).agg(
            f.count("*").alias("rows"), f.expr(f"bit_or(shiftleft(1L, CAST(offset & {2**_WORD - 1} AS INT))) AS bits")
        )
        suspects = counted.where("rows <> bit_count(bits)").select("topic", "partition", "word").collect()
        if not suspects:
            return []
        table = self._spark.createDataFrame(suspects, "topic string, partition int, word bigint")
        again = rows.withColumn("word", word).join(f.broadcast(table), ["topic", "partition", "word"], "left_semi")
        each = again.groupBy("topic", "partition", "offset").agg(
            f.count("*").alias("rows"), f.sort_array(f.collect_set("file_path")).alias("files")
        )
        doubled = each.where("rows > 1").orderBy("topic", "partition", "offset").limit(TOLD + 1).collect()
        found: dict[tuple[str, int, tuple[str, ...]], list[int]] = {}
        for row in doubled[:TOLD]:
            found.setdefault((row.topic, row.partition, tuple(row.files)), []).append(row.offset)
        return [*self._tell_doubled(found, files), *more(len(doubled), "doubled records")]

    def _tell_doubled(
        self, found: Mapping[tuple[str, int, tuple[str, ...]], Sequence[int]], files: Iterable[DataFile]
    ) -> list[Finding]:
        paths = _Paths(files)
        told = []
        for (topic, partition, uris), offsets in found.items():
            first, *others = (paths[uri] for uri in uris)
            what = f"also in {', '.join(others)}" if others else "more than once in this file"
            told.append(difference("doubled", what, TopicPartition(topic, partition), first, as_spans(offsets)))
        return told

    def offsets(self, file: DataFile, partition: int) -> tuple[OffsetRange, ...]:
        """The offsets that a file has rows of."""
        from pyspark.sql import functions as f

        return spans_of(self.rows([file]).where(f.col("partition") == partition))

    def foreign(self, path: str) -> list[tuple[TopicPartition, tuple[OffsetRange, ...]]]:
        """What a file holds that no commit names. Raises what Spark raises when it is no file of ours."""
        storage = self._archive.storage
        rows = read_parquet(self._spark, storage.uri(""), [storage.uri(path)]).where("offset IS NOT NULL")
        found = rows.select("topic", "partition").distinct().orderBy("topic", "partition").collect()
        return [
            (TopicPartition(*row), spans_of(rows.where(f"topic = '{row.topic}' AND partition = {row.partition}")))
            for row in found
        ]


def _measured(row: "Row", path: str) -> Measured:
    names = ("partition", "bucket", "is_compared", "first", "last", "rows", "bytes", "from_ms", "to_ms")
    counted = (row[name] for name in names)
    return Measured._make((path, *counted, schema.unsigned(row["checksum"]), row["misdated"]))


def condition(scope: Scope) -> str:
    """The SQL condition that a row's timestamp is in the scope."""
    conditions = ["true"]
    if scope.times is not None:
        start, end = scope.times
        conditions.append(f"unix_millis(timestamp) >= {start} AND unix_millis(timestamp) < {end}")
    if scope.dates:
        days = ", ".join(f"DATE'{date}'" for date in sorted(scope.dates))
        conditions.append(f"{schema.DATE} IN ({days})")
    return " AND ".join(conditions)


def spans_of(rows: "DataFrame") -> tuple[OffsetRange, ...]:
    """The offsets of one partition's rows as ranges, the first of them."""
    from pyspark.sql import functions as f

    run = f.expr("offset - row_number() OVER (ORDER BY offset)").alias("run")
    runs = rows.select("offset").distinct().select("offset", run).groupBy("run")
    ends = runs.agg(f.min("offset").alias("first"), f.max("offset").alias("last")).orderBy("first").limit(TOLD)
    return tuple(OffsetRange(row["first"], row["last"] + 1) for row in ends.collect())


class _Paths:
    """Files by the URI that Spark has for them."""

    def __init__(self, files: Iterable[DataFile]) -> None:
        self._known = {file.path for file in files}

    def __getitem__(self, uri: str) -> str:
        # Topics, dates and our file names need no percent-encoding; what is before them may have it.
        path = "/".join(uri.split("/")[-3:])
        assert path in self._known, uri
        return path


def more(number: int, what: str) -> list[Finding]:
    """A note where there are more findings of a kind than are told."""
    return [note("more", f"only the first {TOLD} of the {what} are told")] if number > TOLD else []


def _is_of_files(error: Any) -> bool:
    """Whether a job may have failed because of what it read; a lost JVM or an interrupt is nobody's file's fault."""
    from kbroker.pipeline.spark.explain import explain, is_sparks

    if not is_sparks(error) or "SparkContext was shut down" in str(error):
        return False
    return not any(sign in explain(error) for sign in _OF_THE_MACHINE)
