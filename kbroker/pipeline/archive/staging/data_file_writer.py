"""Data files on their way into an archive: written aside, looked at, given their names, and only then committed."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from kbroker.pipeline.archive import schema
from kbroker.pipeline.archive.archive import Archive
from kbroker.pipeline.archive.dataframe import read_parquet
from kbroker.pipeline.archive.manifest import file_format as manifest
from kbroker.pipeline.archive.manifest.model import DataFile, PartitionStats
from kbroker.pipeline.archive.staging import owner
from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.storage.storage import Storage
from kbroker.pipeline.storage.walk import walk

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

THREADS = 4
# Where rows are not to be sorted, a task writes so many files at once before it sorts them by topic and date itself; so
# the rows stay in the order in which they came.
OPEN_FILES = "8"

# What Spark writes is the same under every session: timestamps as Parquet has them now, in microseconds.
_SESSION = {
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.writeLegacyFormat": "false",
    "spark.sql.parquet.binaryAsString": "false",
}
_WRITE_OPTIONS = {"compression": "zstd", "mapreduce.fileoutputcommitter.marksuccessfuljobs": "false"}


class Staged:
    """The files of one writer that are not committed yet. See `staged`."""

    def __init__(self, spark: "SparkSession", archive: Archive) -> None:
        self._spark = spark
        self._archive = archive
        self._storage: Storage = archive.storage
        self.writer = owner.new_writer()
        self._process = owner.this_process()
        self._directory = f"{owner.STAGING}/{self.writer}"
        self._written = 0  # frames
        self._files = 0  # names given
        self._sources: dict[str, str] = {}  # where the files are that are still to be published, by their final path
        self._published: list[str] = []
        self._storage.create(owner.owner_path(self.writer), owner.encode(self._process))

    def write(self, frame: "DataFrame", sort: bool = False) -> tuple[DataFile, ...]:
        """Writes the rows as files of one topic and date each, and reads them back for what is to be known of them.

        `frame`: the columns schema.NAMES in any order; `date` is computed from the timestamp in UTC, given or not, and
        other columns are left out. One task writes one file for each topic and date that it has, so the caller's
        partitioning decides how many there are. `sort`: by partition and offset within each file (but where
        the topic is a constant of the query); else the rows stay in the frame's order, unless a task has more than
        OPEN_FILES topics and dates.
        Nothing of it is in the archive until the files are published and committed. Raises PipelineError when a column
        is missing; what Spark raises goes through.
        """
        target = f"{self._directory}/data-{self._written}"
        self._written += 1
        _write(_shaped(frame, sort), self._storage.uri(target), "0" if sort else OPEN_FILES)
        found = [entry for entry in walk(self._storage, target) if entry.name.endswith(".parquet")]
        if not found:
            return ()
        with ThreadPoolExecutor(THREADS) as pool:
            digests = pool.map(self._storage.sha256, [entry.name for entry in found])
            parts = self._parts(target)
            files = []
            for entry, digest in zip(found, digests, strict=True):
                path = self._final(entry.name.removeprefix(f"{target}/"))
                topic, date = manifest.topic_and_date(path) or ("", "")
                own = parts.get(entry.name.removeprefix(f"{target}/"), [])
                if not own:
                    raise PipelineError(f"{self._storage.uri(entry.name)}: Spark wrote no rows that can be read back")
                files.append(DataFile(path, topic, date, entry.size, digest, tuple(sorted(own))))
                self._sources[path] = entry.name
        return tuple(files)

    def publish(self) -> None:
        """Moves the files to their final places, one by one. No reader takes notice before the commit."""

        def move(path: str) -> None:
            self._storage.rename(self._sources[path], path)

        paths = list(self._sources)
        self._published += paths
        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(move, paths))
        self._sources.clear()

    def keep(self, paths: Iterable[str]) -> None:
        """Says that these data files, which a commit removes, are still wanted by readers: as long as this process
        lives and has not left the context, nobody takes them for leftovers."""
        self._storage.replace(owner.owner_path(self.writer), owner.encode(self._process, paths))

    def _final(self, staged: str) -> str:
        directory, _, _ = staged.rpartition("/")
        path = f"{directory}/{owner.data_name(self.writer, self._files)}"
        self._files += 1
        if manifest.topic_and_date(path) is None:
            raise PipelineError(f"rows without a topic, or of a topic or date that no archive has: {directory}")
        return path

    def _parts(self, target: str) -> Mapping[str, list[PartitionStats]]:
        """Of each written file, by its path below the target."""
        rows = read_parquet(self._spark, self._storage.uri(target), [self._storage.uri(target)])
        # The date as text: Spark's dates go beyond the year 9999, Python's do not.
        named = rows.selectExpr(*schema.NAMES, "_metadata.file_name", "CAST(date AS STRING) AS day")
        found: defaultdict[str, list[PartitionStats]] = defaultdict(list)
        # Within a streaming query Spark would not put its small tasks together.
        with _settings(self._spark, {"spark.sql.adaptive.enabled": "true"}):
            rows_of_parts = schema.parts(named, "topic", "day", "file_name").collect()
        for topic, day, name, *values in rows_of_parts:
            part = PartitionStats(*values)
            found[f"topic={topic}/date={day}/{name}"].append(part._replace(checksum=schema.unsigned(part.checksum)))
        return found

    def close(self) -> None:
        """Removes what was published and not committed, then the staging directory. What cannot be removed now is a
        leftover, which the next writer removes."""
        with suppress(PipelineError, OSError):
            if self._published:
                committed = self._archive.state().files
                for path in self._published:
                    if path not in committed:
                        self._storage.delete(path)
            # The owner file last: without it nobody knows whose the rest is.
            for entry in self._storage.list_directory(self._directory):
                if entry.is_directory:
                    self._storage.delete(f"{self._directory}/{entry.name}", recursive=True)
            self._storage.delete(self._directory, recursive=True)


@contextmanager
def staged(spark: "SparkSession", archive: Archive) -> Iterator[Staged]:
    """A place to write data files in. The order is: write, publish, archive.commit, and leave the context, which
    removes the staging directory and files that were not committed."""
    files = Staged(spark, archive)
    try:
        yield files
    finally:
        files.close()


def _shaped(frame: "DataFrame", sort: bool) -> "DataFrame":
    from pyspark.sql import functions as f

    missing = [name for name in schema.NAMES[:-1] if name not in frame.columns]
    if missing:
        raise PipelineError(f"rows for an archive need the column {missing[0]}")
    # Of a topic that might be null Spark makes a new column before it writes, and then sorts by itself, anyhow.
    topic = {"topic": f.coalesce(f.col("topic"), f.lit("")), "date": f.expr(schema.DATE)}
    shaped = frame.withColumns(topic).select(*schema.NAMES)
    return shaped.sortWithinPartitions("topic", "date", "partition", "offset") if sort else shaped


def _write(frame: "DataFrame", target: str, open_files: str) -> None:
    with _settings(frame.sparkSession, _SESSION | {"spark.sql.maxConcurrentOutputFileWriters": open_files}):
        writer = frame.write.partitionBy("topic", "date")
        for name, value in _WRITE_OPTIONS.items():
            writer = writer.option(name, value)
        writer.parquet(target)


@contextmanager
def _settings(session: Any, settings: Mapping[str, str]) -> Iterator[None]:
    """Settings of a session for a while."""
    before = {name: session.conf.get(name) for name in settings}
    for name, value in settings.items():
        session.conf.set(name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            session.conf.set(name, value)
