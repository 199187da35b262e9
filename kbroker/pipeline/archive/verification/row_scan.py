"""Reads the rows of data files with Spark: statistics in one pass, and offsets where a pass has found a problem."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from kbroker.common import TopicPartition
from kbroker.pipeline.archive import schema
from kbroker.pipeline.archive.archive import Archive, archive_dataframe, read_parquet
from kbroker.pipeline.archive.layout import OffsetRange, ranges_of
from kbroker.pipeline.archive.manifest import ArchiveState, DataFile
from kbroker.pipeline.archive.verification.findings import CountedRows, Finding, difference, note
from kbroker.pipeline.spark import functions as f
from kbroker.pipeline.spark.error_text import error_text, is_spark_error

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Findings of one kind that are reported; the others are only counted.
MAX_REPORTED = 1000
# log2 of the offsets that share a 64-bit integer with one bit each.
_WORD_SHIFT = 6
_MISDATED = f"count_if(date IS NULL OR date <> {schema.DATE}) AS misdated"

# Messages of `error_text` for failures that are not caused by a file.
_RESOURCE_FAILURES = ("no space left on device", "ran out of memory")


class RowScan:
    """Passes over the files of one state. A file that Spark cannot read is excluded from all later passes."""

    def __init__(self, spark: "SparkSession", archive: Archive, state: ArchiveState) -> None:
        self._spark = spark
        self._archive = archive
        self._state = state
        self.unreadable: dict[str, Exception] = {}  # by path

    def count(self, files: Sequence[DataFile], check_files_exist: Callable[[], None]) -> list[CountedRows]:
        """Return the statistics of all rows, by file and partition.

        Files that Spark cannot read are found by bisection and added to `unreadable`. `check_files_exist` is called
        before a failure is attributed to a file: it raises if the failure may be due to a deleted file.
        """
        if not files:
            return []
        by_path = {file.path: file for file in files}
        try:
            found = schema.partition_stats(self.rows(files), "file_path", more=[f.expr(_MISDATED)])
            return sorted(CountedRows(by_path[_path_of(uri)], stats, misdated) for (uri,), stats, (misdated,) in found)
        except Exception as error:
            check_files_exist()
            if not _is_caused_by_files(error):
                raise
            if len(files) == 1:
                self.unreadable[files[0].path] = error
                return []
        half = len(files) // 2
        return self.count(files[:half], check_files_exist) + self.count(files[half:], check_files_exist)

    def rows(self, files: Iterable[DataFile]) -> "DataFrame":
        """Return the rows of these files, except unreadable ones: schema.NAMES, and the URI as `file_path`."""
        readable = [file for file in files if file.path not in self.unreadable]
        if not readable:
            return self._spark.createDataFrame([], f"{schema.COLUMNS}, file_path string")
        rows = archive_dataframe(self._spark, self._archive, self._state, readable)
        return rows.select(*schema.NAMES, "_metadata.file_path")

    def find_duplicates(self, files: Sequence[DataFile]) -> list[Finding]:
        """Find records that are in the files more than once.

        The first pass reads only the offsets, and counts the rows and distinct offsets of each group of 64 offsets.
        """
        rows = self.rows(files).select("topic", "partition", "offset", "file_path")
        word = f.expr(f"shiftright(offset, {_WORD_SHIFT})").alias("word")
        bit = f"shiftleft(1L, CAST(offset & {2**_WORD_SHIFT - 1} AS INT))"
        counted = rows.groupBy("topic", "partition", word).agg(
            f.count("*").alias("rows"), f.expr(f"bit_or({bit}) AS bits")
        )
        suspects = counted.where("rows <> bit_count(bits)").select("topic", "partition", "word").collect()
        if not suspects:
            return []
        table = self._spark.createDataFrame(suspects, "topic string, partition int, word bigint")
        candidates = rows.withColumn("word", word).join(f.broadcast(table), ["topic", "partition", "word"], "left_semi")
        by_offset = candidates.groupBy("topic", "partition", "offset").agg(
            f.count("*").alias("rows"), f.sort_array(f.collect_set("file_path")).alias("uris")
        )
        duplicates = by_offset.where("rows > 1").orderBy("topic", "partition", "offset").limit(MAX_REPORTED + 1)
        found = duplicates.collect()
        offsets: dict[tuple[TopicPartition, tuple[str, ...]], list[int]] = defaultdict(list)
        for row in found[:MAX_REPORTED]:
            offsets[TopicPartition(row.topic, row.partition), tuple(map(_path_of, row.uris))].append(row.offset)
        findings = []
        for (tp, (first, *others)), listed in offsets.items():
            text = f"also in {', '.join(others)}" if others else "more than once in this file"
            findings.append(difference("doubled", text, tp, first, ranges_of(listed)))
        return [*findings, *note_omitted(len(found), "duplicate records")]

    def offsets(self, file: DataFile, partition: int) -> tuple[OffsetRange, ...]:
        """Return the offsets of a file's rows."""
        return _collect_ranges(self.rows([file]).where(f.col("partition") == partition))

    def foreign_offsets(self, path: str) -> list[tuple[TopicPartition, tuple[OffsetRange, ...]]]:
        """Return the offsets of a foreign file's rows. Raises an exception of Spark if it is not like an archive's."""
        storage = self._archive.storage
        rows = read_parquet(self._spark, storage.uri(""), [storage.uri(path)]).where("offset IS NOT NULL")
        found = rows.select("topic", "partition").distinct().orderBy("topic", "partition").collect()
        partitions = [TopicPartition(row.topic, row.partition) for row in found]
        return [
            (tp, _collect_ranges(rows.where(f"topic = '{tp.topic}' AND partition = {tp.partition}")))
            for tp in partitions
        ]


def note_omitted(count: int, description: str) -> list[Finding]:
    """Return a note if there are more findings of a kind than are reported."""
    text = f"only the first {MAX_REPORTED} {description} are reported"
    return [note("more", text)] if count > MAX_REPORTED else []


def _collect_ranges(rows: "DataFrame") -> tuple[OffsetRange, ...]:
    """Return the first MAX_REPORTED offset ranges of one partition's rows."""
    run = f.expr("offset - row_number() OVER (ORDER BY offset)").alias("run")  # equal for consecutive offsets
    runs = rows.select("offset").distinct().select("offset", run).groupBy("run")
    ends = runs.agg(f.min("offset").alias("first"), f.max("offset").alias("last")).orderBy("first").limit(MAX_REPORTED)
    return tuple(OffsetRange(row["first"], row["last"] + 1) for row in ends.collect())


def _path_of(uri: str) -> str:
    """Return the path within the archive of a committed file's URI.

    Its components (topic, date and name) need no percent-encoding, while those before them may.
    """
    return "/".join(uri.split("/")[-3:])


def _is_caused_by_files(error: Exception) -> bool:
    """Return whether the content of files may have caused the failure of a job, rather than the loss of the JVM."""
    if not is_spark_error(error) or "SparkContext was shut down" in str(error):
        return False
    message = error_text(error)
    return not any(text in message for text in _RESOURCE_FAILURES)
