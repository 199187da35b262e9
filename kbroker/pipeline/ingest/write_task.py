"""What a Spark task does with the records of a batch: writes them as data files of the topic's table.

The files become part of the table when the driver commits them. Those of a task that fails, or runs twice, do not.
"""

import pickle
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from kbroker.archive.data_files import DataFile, FileWriter, WriteTarget

# Rows of Spark's small Arrow batches are collected up to this size before they are divided by day.
CHUNK_BYTES = 8 << 20
RESULT_SCHEMA = "topic string, files binary, record_bytes bigint"
# The columns that a task gets; those of the table without the topic.
COLUMNS = ("topic", "partition", "offset", "timestamp", "timestampType", "key", "value", "headers")


class WrittenFiles(NamedTuple):
    """What a task has written for one topic."""

    topic: str
    files: list[DataFile]
    record_bytes: int  # of keys and values


def write_files(
    batches: Iterator[pa.RecordBatch], targets: Mapping[str, WriteTarget], max_file_bytes: int
) -> Iterator[pa.RecordBatch]:
    """Write rows with the columns COLUMNS. A function for Spark's `mapInArrow`; yields RESULT_SCHEMA.

    A task reads one partition of one topic.
    """
    writers: dict[str, FileWriter] = {}
    record_bytes: dict[str, int] = {}
    for topic, rows in _chunks(batches):
        if topic not in writers:
            writers[topic] = FileWriter(targets[topic], max_file_bytes)
        writers[topic].add(rows)
        record_bytes[topic] = record_bytes.get(topic, 0) + _record_bytes(rows)
    for topic, writer in writers.items():
        yield pa.record_batch(
            {
                "topic": pa.array([topic]),
                "files": pa.array([pickle.dumps(writer.close())], pa.binary()),
                "record_bytes": pa.array([record_bytes[topic]], pa.int64()),
            }
        )


def read_result(topic: str, files: bytes, record_bytes: int) -> WrittenFiles:
    """Return what a row of a task's result says."""
    return WrittenFiles(topic, pickle.loads(bytes(files)), record_bytes)


def _chunks(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Yield topics and rows of them without the topic, in order."""
    topic, collected, size = "", list[pa.RecordBatch](), 0
    for batch in batches:
        if batch.num_rows == 0:
            continue
        first = batch.column("topic")[0].as_py()
        if collected and (first != topic or size >= CHUNK_BYTES):
            yield topic, pa.concat_batches(collected)
            collected, size = [], 0
        topic = first
        rows = batch.drop_columns(["topic"])
        collected.append(rows)
        size += rows.nbytes
    if collected:
        yield topic, pa.concat_batches(collected)


def _record_bytes(rows: pa.RecordBatch) -> int:
    return sum(pc.sum(pc.binary_length(rows.column(name))).as_py() or 0 for name in ("key", "value"))
