"""The archived rows of a replay: the tables of its topics as they are at its start, and a DataFrame of files' rows."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from kbroker.archive.archive import Archive
from kbroker.archive.data_files import DataFile
from kbroker.archive.decoding.settings import require_raw
from kbroker.archive.errors import ArchiveError
from kbroker.archive.report import require_topics
from kbroker.archive.storage import open_storage
from kbroker.archive.storage.storage import Storage
from kbroker.archive.topic_state import TopicState
from kbroker.pipeline.errors import PipelineError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

COLUMNS = ("partition", "offset", "timestamp", "key", "value", "headers")
ROWS_SCHEMA = {
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "bigint",  # milliseconds
    "key": "binary",
    "value": "binary",
    "headers": "array<struct<key: string, value: binary>>",
}
# Tasks read files completely; more tasks than cores end at about the same time.
TASKS_PER_CORE = 4
# The maximum size of the Arrow batches that a task returns.
BATCH_ROWS, BATCH_BYTES = 10_000, 4 << 20
_SIZE_THREADS = 8


class ReplayedTopic(NamedTuple):
    """The table of a topic when a replay read it."""

    state: TopicState
    files: Sequence[DataFile]
    io_properties: Mapping[str, str]  # for reading the files: for example the end point and credentials of S3
    foreign_change: str | None  # what another program did to the table

    def missing_below(self, ends: Mapping[int, int]) -> int:
        """Return how many offsets below the ends of partitions are in gaps."""
        bounds = ((gap.start, min(gap.end, ends.get(gap.partition, 0))) for gap in self.state.gaps)
        return sum(max(0, end - start) for start, end in bounds)


def read_topics(archive: Archive, topics: Sequence[str]) -> dict[str, ReplayedTopic]:
    """Return the newest state of these topics.

    Raises ArchiveError if the archive does not have one, or has it without the bytes of keys and values.
    """
    require_topics(archive, topics)
    result = {}
    for table in archive.tables(topics):
        absent = [name for name in COLUMNS if name not in table.iceberg.schema().column_names]
        if absent:
            raise ArchiveError(
                f"{archive.location}: topic {table.topic} is archived without the columns {', '.join(absent)}, so its "
                f"records cannot be replayed"
            )
        target = table.write_target()
        require_raw(table.iceberg.properties, table.location)
        result[table.topic] = ReplayedTopic(table.state, table.files(), target.io_properties, table.foreign_change())
    return result


def plan_storage(archive: Archive) -> Storage:
    """Return where the plans of replays are: the archive's directory, or the one that has its tables' directories."""
    if archive.root is not None:
        return open_storage(archive.root)
    tables = archive.tables(archive.topics()[:1])
    if not tables:
        raise ArchiveError(f"{archive.location}: the archive is empty")
    parent = tables[0].location.rstrip("/").rpartition("/")[0]
    return open_storage(parent, dict(tables[0].iceberg.io.properties))


def require_files(topics: Mapping[str, ReplayedTopic], files: Mapping[str, Sequence[DataFile]]) -> None:
    """Raise PipelineError for a file that is missing or does not have its committed size."""
    from pyiceberg.io import load_file_io

    def problem(topic: str, file: DataFile) -> str | None:
        io = load_file_io(dict(topics[topic].io_properties), file.path)
        try:
            size = len(io.new_input(file.path))
        except Exception as error:  # of any file system
            return "is missing" if isinstance(error, FileNotFoundError) else str(error).partition("\n")[0]
        return None if size == file.size else f"has {size} bytes instead of {file.size}"

    pairs = [(topic, file) for topic, listed in files.items() for file in listed]
    with ThreadPoolExecutor(_SIZE_THREADS) as pool:
        for (_, file), found in zip(pairs, pool.map(lambda pair: problem(*pair), pairs), strict=True):
            if found is not None:
                raise PipelineError(f"{file.path}: {found}; `kbroker archive verify` reports what is damaged")


def rows_frame(
    spark: "SparkSession",
    topics: Mapping[str, ReplayedTopic],
    files: Mapping[str, Sequence[DataFile]],
    columns: Sequence[str] = tuple(ROWS_SCHEMA),
) -> "DataFrame":
    """Return the rows of these files of each topic, with some columns of ROWS_SCHEMA, in no particular order.

    The files are read by Python, so that Spark needs neither libraries nor credentials for the archive's storage. A
    file that is damaged, or deleted while the DataFrame is in use (by compaction), fails the job.
    """
    schema = ", ".join(f"{name} {ROWS_SCHEMA[name]}" for name in columns)
    listed = [(topic, file.path) for topic, of_topic in sorted(files.items()) for file in of_topic]
    if not listed:
        return spark.createDataFrame([], schema)
    tasks = min(len(listed), TASKS_PER_CORE * spark.sparkContext.defaultParallelism)
    # Interleaved: the large files of a topic, which are neighbours, go to different tasks.
    ordered = [pair for task in range(tasks) for pair in listed[task::tasks]]
    paths = spark.createDataFrame(spark.sparkContext.parallelize(ordered, tasks), "topic string, path string")
    read = partial(read_files, io_properties={name: topics[name].io_properties for name in files}, columns=columns)
    return paths.mapInArrow(read, schema)


def read_files(
    paths: "Iterable[pa.RecordBatch]", io_properties: Mapping[str, Mapping[str, str]], columns: Sequence[str]
) -> "Iterator[pa.RecordBatch]":
    """Read files, given by the columns topic and path. A function for Spark's `mapInArrow`."""
    for batch in paths:
        for topic, path in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            try:
                yield from _read_file(topic, path, io_properties[topic], columns)
            except Exception as error:  # of pyarrow or any file system
                text = str(error).partition("\n")[0]
                raise PipelineError(f"{path}: {text}; `kbroker archive verify` reports what is damaged") from error


def _read_file(
    topic: str, path: str, io_properties: Mapping[str, str], columns: Sequence[str]
) -> "Iterator[pa.RecordBatch]":
    import pyarrow as pa
    import pyarrow.parquet as pq
    from pyiceberg.io import load_file_io

    with (
        load_file_io(dict(io_properties), path).new_input(path).open() as source,
        pq.ParquetFile(source, page_checksum_verification=True) as parquet,
    ):
        metadata = parquet.metadata
        sizes = sum(metadata.row_group(number).total_byte_size for number in range(metadata.num_row_groups))
        count = max(1, min(BATCH_ROWS, BATCH_BYTES * metadata.num_rows // max(1, sizes)))
        stored = [name for name in columns if name != "topic"]
        for rows in parquet.iter_batches(count, columns=stored):
            arrays = {name: _as_spark_type(name, rows.column(name)) for name in stored}
            if "topic" in columns:
                arrays["topic"] = pa.repeat(topic, rows.num_rows)
            yield pa.record_batch({name: arrays[name] for name in columns})


def _as_spark_type(name: str, values: "pa.Array") -> "pa.Array":
    import pyarrow as pa
    import pyarrow.compute as pc

    if name == "timestamp":
        return pc.divide(values.cast(pa.int64()), 1000)  # kbroker's timestamps are whole milliseconds
    if name in ("key", "value"):
        return values.cast(pa.binary())
    if name == "headers":
        return values.cast(pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])))
    return values
