"""What a Spark task does with the records of a batch: decodes them, and writes them as data files of the topic's table.

The files become part of the table when the driver commits them. Those of a task that fails, or runs twice, do not.
"""

import json
import pickle
import time
from base64 import b64decode
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from kbroker.archive.data_files import DataFile, FileWriter, WriteTarget
from kbroker.archive.decoding.dead_letters import only_new
from kbroker.archive.decoding.decoder import Decoder, DecodeTask, MissingSchema
from kbroker.pipeline.ingest.exact_reading import HEADERS, is_inexact

# Rows of Spark's small Arrow batches are collected up to this size before they are divided by day.
CHUNK_BYTES = 8 << 20
RESULT_SCHEMA = "written binary"
# The columns that a task gets; those of the table without the topic.
COLUMNS = ("topic", "partition", "offset", "timestamp", "timestampType", "key", "value", "headers")
# The same as Spark sends them. Headers come as JSON: Spark measures its Arrow batch at each row, which takes 20 us with
# nested columns, ten times what the rest of a record takes.
EXPRESSIONS = (*COLUMNS[:-1], "CASE WHEN size(headers) > 0 THEN to_json(headers) END AS headers")


@dataclass(frozen=True)
class DeadLetterTarget:
    """Where the dead letters of a topic are written."""

    table: WriteTarget
    resume: Mapping[int, int]  # by partition, the offset below which dead letters are written already


@dataclass(frozen=True)
class TopicTarget:
    """Where and how the records of a topic are written."""

    table: WriteTarget
    decode: DecodeTask | None = None
    dead_letters: DeadLetterTarget | None = None  # of records that are not decoded, or not read exactly


@dataclass
class WrittenFiles:
    """What a task has written for one topic."""

    topic: str
    files: list[DataFile] = field(default_factory=list)
    dead_letters: list[DataFile] = field(default_factory=list)
    record_bytes: int = 0  # of keys and values
    # If there are any, the records must be written again when the table has these schemas.
    missing: set[MissingSchema] = field(default_factory=set)
    is_inexact: bool = False  # if so, the records must be read again by exact_reading


def write_files(
    batches: Iterator[pa.RecordBatch], targets: Mapping[str, TopicTarget], max_file_bytes: int
) -> Iterator[pa.RecordBatch]:
    """Write rows with the columns EXPRESSIONS. A function for Spark's `mapInArrow`; yields RESULT_SCHEMA.

    A task reads one partition of one topic.
    """
    writers: dict[str, TopicWriter] = {}
    for topic, rows in _chunks(batches):
        if topic not in writers:
            writers[topic] = TopicWriter(topic, targets[topic], max_file_bytes)
        if is_inexact(rows):
            writers[topic].written.is_inexact = True
            break
        writers[topic].add(rows)
    results = [pickle.dumps(writer.close()) for writer in writers.values()]
    yield pa.record_batch({"written": pa.array(results, pa.binary())})


def read_result(written: bytes) -> WrittenFiles:
    """Return what a row of a task's result says."""
    result: WrittenFiles = pickle.loads(bytes(written))
    return result


class TopicWriter:
    """Writes the records of one topic."""

    def __init__(self, topic: str, target: TopicTarget, max_file_bytes: int) -> None:
        self.written = WrittenFiles(topic)
        self._rows = FileWriter(target.table, max_file_bytes)
        self._decoder = None if target.decode is None else Decoder(target.decode)
        self._dead_letters = None
        if target.dead_letters is not None:
            self._dead_letters = FileWriter(target.dead_letters.table, max_file_bytes)
            self._resume = target.dead_letters.resume

    def add(self, rows: pa.RecordBatch) -> None:
        self.written.record_bytes += _record_bytes(rows)
        if self._decoder is not None:
            decoded = self._decoder.decode(rows, time.time_ns() // 1_000_000)
            self.written.missing |= decoded.missing
            if self.written.missing:
                return
            rows = decoded.rows
            if decoded.dead is not None:
                self.add_dead_letters(decoded.dead)
        self._rows.add(rows)

    def add_dead_letters(self, rows: pa.RecordBatch) -> None:
        assert self._dead_letters is not None
        self._dead_letters.add(only_new(rows, self._resume))

    def close(self) -> WrittenFiles:
        if not self.written.missing and not self.written.is_inexact:
            self.written.files = self._rows.close()
            self.written.dead_letters = [] if self._dead_letters is None else self._dead_letters.close()
        return self.written


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
        rows = rows.set_column(rows.num_columns - 1, "headers", _parse_headers(rows.column("headers")))
        collected.append(rows)
        size += rows.nbytes
    if collected:
        yield topic, pa.concat_batches(collected)


def _parse_headers(texts: pa.Array) -> pa.Array:
    """Return headers from Spark's JSON of them, in which values are base64, and absent if they are null."""
    if texts.null_count == len(texts):
        return pa.nulls(len(texts), HEADERS)
    parsed = [
        None
        if text is None
        else [(item["key"], b64decode(item["value"]) if "value" in item else None) for item in json.loads(text)]
        for text in texts.to_pylist()
    ]
    return pa.array(parsed, HEADERS)


def _record_bytes(rows: pa.RecordBatch) -> int:
    return sum(pc.sum(pc.binary_length(rows.column(name))).as_py() or 0 for name in ("key", "value"))
