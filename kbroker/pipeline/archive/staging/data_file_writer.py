"""Writes data files into a staging directory, then moves them to their final paths; the caller commits them."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from kbroker.pipeline.archive import schema
from kbroker.pipeline.archive.archive import Archive
from kbroker.pipeline.archive.dataframe import read_parquet
from kbroker.pipeline.archive.layout import data_name, owner_path, parse_data_path, staging_directory
from kbroker.pipeline.archive.manifest.model import DataFile, PartitionStats
from kbroker.pipeline.archive.staging import owner
from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.storage.walk import walk

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

THREADS = 4
# For unsorted rows: a task writes this many files at once before Spark sorts its rows by topic and date, so that rows
# of few topics and dates keep their order.
OPEN_FILES = "8"

# Session settings that change the files; with fixed values the files are the same under every session.
_SESSION_SETTINGS = {
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.writeLegacyFormat": "false",
    "spark.sql.parquet.binaryAsString": "false",
}
_WRITE_OPTIONS = {"compression": "zstd", "mapreduce.fileoutputcommitter.marksuccessfuljobs": "false"}


@contextmanager
def data_file_writer(spark: "SparkSession", archive: Archive) -> "Iterator[DataFileWriter]":
    """Create a writer. Call write, publish and archive.commit in this order.

    On exit, the staging directory and files that were not committed are deleted.
    """
    writer = DataFileWriter(spark, archive)
    try:
        yield writer
    finally:
        writer.close()


class DataFileWriter:
    """Writes data files of one commit; see data_file_writer."""

    def __init__(self, spark: "SparkSession", archive: Archive) -> None:
        self._spark = spark
        self._archive = archive
        self._storage = archive.storage
        self.writer_id = owner.new_writer_id()
        self._process = owner.this_process()
        self._directory = staging_directory(self.writer_id)
        self._write_count = 0
        self._file_count = 0
        self._staged: dict[str, str] = {}  # staged path of each unpublished file, by its final path
        self._published: list[str] = []
        self._storage.create(owner_path(self.writer_id), owner.encode(self._process))

    def write(self, frame: "DataFrame", sort: bool = False) -> tuple[DataFile, ...]:
        """Write the rows as staged files of one topic and date each, and compute their statistics by reading them back.

        `frame` has the columns schema.NAMES in any order; `date` is always computed from the timestamp in UTC, and
        other columns are ignored. Each task writes one file per topic and date, so the partitioning of `frame`
        determines the number of files. With `sort`, each file is sorted by partition and offset (unless `topic` is a
        constant of the query). Without it, the rows keep their order, unless a task has more than OPEN_FILES
        combinations of topic and date.

        Raises PipelineError if a column is missing; exceptions of Spark are not converted.
        """
        target = f"{self._directory}/data-{self._write_count}"
        self._write_count += 1
        _write_parquet(_normalize(frame, sort), self._storage.uri(target), "0" if sort else OPEN_FILES)
        entries = [entry for entry in walk(self._storage, target) if entry.name.endswith(".parquet")]
        if not entries:
            return ()
        with ThreadPoolExecutor(THREADS) as pool:
            digests = pool.map(self._storage.sha256, [entry.name for entry in entries])
            stats = self._read_stats(target)
            files = []
            for entry, digest in zip(entries, digests, strict=True):
                relative = entry.name.removeprefix(f"{target}/")
                path, topic, date = self._final_path(relative)
                partitions = tuple(sorted(stats.get(relative, ())))
                if not partitions:
                    raise PipelineError(f"{self._storage.uri(entry.name)}: Spark wrote no rows that can be read back")
                files.append(DataFile(path, topic, date, entry.size, digest, partitions))
                self._staged[path] = entry.name
        return tuple(files)

    def publish(self) -> None:
        """Move the staged files to their final paths. They become visible to readers with the commit."""
        staged, self._staged = self._staged, {}
        self._published += staged
        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(lambda path: self._storage.rename(staged[path], path), staged))

    def keep_files(self, paths: Iterable[str]) -> None:
        """Keep files that a commit removes from being leftovers until `close` or the end of this process."""
        self._storage.replace(owner_path(self.writer_id), owner.encode(self._process, paths))

    def close(self) -> None:
        """Delete published files that were not committed, then the staging directory.

        Files that cannot be deleted now are leftovers, which the next writer deletes.
        """
        with suppress(PipelineError, OSError):
            if self._published:
                committed = self._archive.state().files
                for path in self._published:
                    if path not in committed:
                        self._storage.delete(path)
            # The owner file is deleted last: without it the writer of the other files is unknown.
            for entry in self._storage.list_directory(self._directory):
                if entry.is_directory:
                    self._storage.delete(f"{self._directory}/{entry.name}", recursive=True)
            self._storage.delete(self._directory, recursive=True)

    def _final_path(self, relative: str) -> tuple[str, str, str]:
        """Return the final path, topic and date of a staged file."""
        directory, _, _ = relative.rpartition("/")
        path = f"{directory}/{data_name(self.writer_id, self._file_count)}"
        self._file_count += 1
        topic_and_date = parse_data_path(path)
        if topic_and_date is None:
            raise PipelineError(f"an archive cannot hold rows without a topic, or of this topic and date: {directory}")
        return path, *topic_and_date

    def _read_stats(self, target: str) -> Mapping[str, list[PartitionStats]]:
        """Return the statistics of each written file by its path below the target."""
        rows = read_parquet(self._spark, self._storage.uri(target), [self._storage.uri(target)])
        # The date is read as text, because Python's dates end with the year 9999 and Spark's do not.
        rows = rows.selectExpr(*schema.NAMES, "_metadata.file_name", "CAST(date AS STRING) AS day")
        # Without adaptive execution, which is off within a streaming query, Spark does not coalesce small tasks.
        with _session_settings(self._spark, {"spark.sql.adaptive.enabled": "true"}):
            stats_rows = schema.partition_stats(rows, "topic", "day", "file_name").collect()
        stats_by_path: defaultdict[str, list[PartitionStats]] = defaultdict(list)
        for topic, day, name, *values in stats_rows:
            stats = PartitionStats(*values)
            stats = stats._replace(checksum=schema.to_unsigned(stats.checksum))
            stats_by_path[f"topic={topic}/date={day}/{name}"].append(stats)
        return stats_by_path


def _normalize(frame: "DataFrame", sort: bool) -> "DataFrame":
    from pyspark.sql import functions as f

    missing = [name for name in schema.NAMES[:-1] if name not in frame.columns]
    if missing:
        raise PipelineError(f"rows for an archive need the column {missing[0]}")
    # Spark replaces a nullable partition column by another expression, and then ignores the sort order.
    columns = {"topic": f.coalesce(f.col("topic"), f.lit("")), "date": f.expr(schema.DATE)}
    rows = frame.withColumns(columns).select(*schema.NAMES)
    return rows.sortWithinPartitions("topic", "date", "partition", "offset") if sort else rows


def _write_parquet(frame: "DataFrame", target: str, open_files: str) -> None:
    settings = _SESSION_SETTINGS | {"spark.sql.maxConcurrentOutputFileWriters": open_files}
    with _session_settings(frame.sparkSession, settings):
        frame.write.partitionBy("topic", "date").options(**_WRITE_OPTIONS).parquet(target)


@contextmanager
def _session_settings(session: Any, settings: Mapping[str, str]) -> Iterator[None]:
    """Set properties of a session temporarily."""
    previous = {name: session.conf.get(name) for name in settings}
    for name, value in settings.items():
        session.conf.set(name, value)
    try:
        yield
    finally:
        for name, value in previous.items():
            session.conf.set(name, value)
