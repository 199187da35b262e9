"""What a Spark task does with the records of a batch: decodes them, and writes them as data files of the topic's table.

The files become part of the table when the driver commits them. Those of a task that fails, or runs twice, do not.
"""

import pickle
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from kbroker.archive.data_files import DataFile, FileWriter, WriteTarget
from kbroker.archive.dead_letters import only_new
from kbroker.archive.decoding.decoder import Decoder, DecodeTask, MissingSchema

# Rows of Spark's small Arrow batches are collected up to this size before they are divided by day.
CHUNK_BYTES = 8 << 20
RESULT_SCHEMA = "written binary"
# The columns that a task gets; those of the table without the topic.
COLUMNS = ("topic", "partition", "offset", "timestamp", "timestampType", "key", "value", "headers")


@dataclass(frozen=True)
class DecodeTarget:
    """How a topic is decoded, and where its dead letters are written."""

    task: DecodeTask
    dead_letters: WriteTarget
    dead_resume: Mapping[int, int]  # by partition, the offset below which dead letters are written already


@dataclass(frozen=True)
class TopicTarget:
    """Where and how the records of a topic are written."""

    table: WriteTarget
    decode: DecodeTarget | None = None


@dataclass
class WrittenFiles:
    """What a task has written for one topic."""

    topic: str
    files: list[DataFile] = field(default_factory=list)
    dead_letters: list[DataFile] = field(default_factory=list)
    record_bytes: int = 0  # of keys and values
    # If there are any, the records must be written again when the table has these schemas.
    missing: set[MissingSchema] = field(default_factory=set)


def write_files(
    batches: Iterator[pa.RecordBatch], targets: Mapping[str, TopicTarget], max_file_bytes: int
) -> Iterator[pa.RecordBatch]:
    """Write rows with the columns COLUMNS. A function for Spark's `mapInArrow`; yields RESULT_SCHEMA.

    A task reads one partition of one topic.
    """
    writers: dict[str, _TopicWriter] = {}
    for topic, rows in _chunks(batches):
        if topic not in writers:
            writers[topic] = _TopicWriter(topic, targets[topic], max_file_bytes)
        writers[topic].add(rows)
    results = [pickle.dumps(writer.close()) for writer in writers.values()]
    yield pa.record_batch({"written": pa.array(results, pa.binary())})


def read_result(written: bytes) -> WrittenFiles:
    """Return what a row of a task's result says."""
    result: WrittenFiles = pickle.loads(bytes(written))
    return result


class _TopicWriter:
    """Writes the records of one topic."""

    def __init__(self, topic: str, target: TopicTarget, max_file_bytes: int) -> None:
        self._written = WrittenFiles(topic)
        self._rows = FileWriter(target.table, max_file_bytes)
        self._decode = target.decode
        if target.decode is not None:
            self._decoder = Decoder(target.decode.task)
            self._dead_letters = FileWriter(target.decode.dead_letters, max_file_bytes)

    def add(self, rows: pa.RecordBatch) -> None:
        self._written.record_bytes += _record_bytes(rows)
        if self._decode is not None:
            decoded = self._decoder.decode(rows, time.time_ns() // 1_000_000)
            self._written.missing |= decoded.missing
            if self._written.missing:
                return
            rows = decoded.rows
            if decoded.dead is not None:
                self._dead_letters.add(only_new(decoded.dead, self._decode.dead_resume))
        self._rows.add(rows)

    def close(self) -> WrittenFiles:
        if not self._written.missing:
            self._written.files = self._rows.close()
            self._written.dead_letters = [] if self._decode is None else self._dead_letters.close()
        return self._written


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
