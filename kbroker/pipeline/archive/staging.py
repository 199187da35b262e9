"""Data files in a staging directory, before they are moved to their final paths and the caller commits them.

The owner file says which process is writing, so that others know whether it is still alive. It is written before
anything else in the staging directory and deleted last.
"""

import json
import os
import socket
import uuid
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from kbroker.pipeline.archive import schema
from kbroker.pipeline.archive.archive import Archive, read_parquet
from kbroker.pipeline.archive.layout import data_name, owner_path, parse_data_path, staging_directory
from kbroker.pipeline.archive.manifest import DataFile, PartitionStats
from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.spark import functions as f
from kbroker.pipeline.storage.storage import walk

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


# A writer on another host counts as dead when nothing was written to its staging directory for this long.
REMOTE_TIMEOUT_MS = 24 * 3600 * 1000


class Process(NamedTuple):
    """A process, distinguishable from a later one with the same pid."""

    host: str
    boot: str  # id of the host's boot; empty if the system has none
    pid: int
    start: str  # start time in the system's own unit; empty if it is unknown


class StagingStatus(NamedTuple):
    """The status of a staging directory."""

    is_alive: bool  # its writer may still be running
    kept_files: tuple[str, ...]  # removed data files that running readers may still need


def new_writer_id() -> str:
    """Return a unique id; see layout.is_writer_id."""
    return uuid.uuid4().hex[:12]


def this_process() -> Process:
    pid = os.getpid()
    return Process(socket.gethostname(), _boot_id(), pid, _start_time(pid))


def encode_owner(process: Process, kept_files: Iterable[str] = ()) -> bytes:
    return json.dumps(process._asdict() | {"keeps": sorted(kept_files)}).encode() + b"\n"


def decode_owner(data: bytes, age_ms: int) -> StagingStatus:
    """Return the status that an owner file describes.

    `age_ms` is the time since the last write in the staging directory. It alone decides if the owner file is damaged.
    """
    try:
        owner = json.loads(data)
        process = Process(str(owner["host"]), str(owner["boot"]), int(owner["pid"]), str(owner["start"]))
        return StagingStatus(is_alive(process, age_ms), tuple(map(str, owner["keeps"])))
    except (ValueError, KeyError, TypeError):
        return StagingStatus(age_ms < REMOTE_TIMEOUT_MS, ())


def is_alive(process: Process, age_ms: int) -> bool:
    """Return whether the process may still write; `age_ms` is the time since its last write."""
    if process.host != socket.gethostname():
        return age_ms < REMOTE_TIMEOUT_MS
    if process.boot != _boot_id():
        return False
    try:
        os.kill(process.pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return process.start == _start_time(process.pid)


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _start_time(pid: int) -> str:
    """Return the start time in clock ticks since boot; empty for a process that has ended."""
    try:
        # The command name before the last ")" may itself contain ")".
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in ("Z", "X") else fields[19]


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
        self.writer_id = new_writer_id()
        self._process = this_process()
        self._directory = staging_directory(self.writer_id)
        self._write_count = 0
        self._file_count = 0
        self._staged: dict[str, str] = {}  # staged path of each unpublished file, by its final path
        self._published: list[str] = []
        self._storage.create(owner_path(self.writer_id), encode_owner(self._process))

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
        self._storage.replace(owner_path(self.writer_id), encode_owner(self._process, paths))

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
            found = schema.partition_stats(rows, "topic", "day", "file_name")
        stats_by_path: defaultdict[str, list[PartitionStats]] = defaultdict(list)
        for (topic, day, name), stats, _ in found:
            stats_by_path[f"topic={topic}/date={day}/{name}"].append(stats)
        return stats_by_path


def _normalize(frame: "DataFrame", sort: bool) -> "DataFrame":
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
