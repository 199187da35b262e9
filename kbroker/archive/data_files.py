"""The data files of a topic's table: what the table's metadata says of them, and writing new ones.

A file's name ends with the SHA-256 of its bytes, because Iceberg has no place for a checksum of a file. Times are
milliseconds since the epoch, sizes are bytes.
"""

import hashlib
import re
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple, cast

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.conversions import from_bytes
from pyiceberg.io import load_file_io
from pyiceberg.io.pyarrow import (
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
    schema_to_pyarrow,
)
from pyiceberg.manifest import DataFile as IcebergFile
from pyiceberg.manifest import DataFileContent, FileFormat
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.types import IntegerType, LongType

from kbroker.archive.offset_ranges import OffsetRange
from kbroker.archive.rows import OFFSET, PARTITION, PLAIN_COLUMNS, TIMESTAMP

# Files are not larger than this, before compression. A task holds one file's rows for each period that it writes, and
# at most MAX_BUFFERED_BYTES of all.
MAX_FILE_BYTES, MAX_BUFFERED_BYTES = 128 << 20, 256 << 20
ROWS_PER_GROUP = 65_536
_PIECE_BYTES = 4 << 20
PERIOD_US = {"day": 86_400_000_000, "hour": 3_600_000_000}
_NAME = re.compile(r"[0-9a-f]{12}-([0-9a-f]{64})\.parquet")


class DataFile(NamedTuple):
    """A data file that a table has, or that can be added to it."""

    path: str  # a URI
    partition: int
    first: int  # the lowest offset
    last: int  # the highest offset, inclusive
    rows: int
    size: int
    from_ms: int  # the lowest timestamp
    to_ms: int  # the highest timestamp
    entry: IcebergFile

    @property
    def offsets(self) -> OffsetRange:
        return OffsetRange(self.first, self.last + 1)

    @property
    def sha256(self) -> str | None:
        """The checksum that the file's bytes must have; None for a file that another program wrote."""
        match = _NAME.fullmatch(self.path.rpartition("/")[2])
        return None if match is None else match[1]

    @property
    def period(self) -> int:
        """Days or hours since 1970, by the table's partitioning."""
        return int(self.entry.partition[0])

    @classmethod
    def of(cls, entry: IcebergFile) -> "DataFile":
        """Raises KeyError, ValueError or TypeError for a file without the statistics that kbroker writes."""
        lower, upper = cast(Mapping[int, bytes], entry.lower_bounds), cast(Mapping[int, bytes], entry.upper_bounds)
        partition: Any = from_bytes(IntegerType(), lower[PARTITION])
        first, last, from_us, to_us = (
            cast(int, from_bytes(LongType(), bounds[field_id]))
            for field_id in (OFFSET, TIMESTAMP)
            for bounds in (lower, upper)
        )
        if partition != from_bytes(IntegerType(), upper[PARTITION]):
            raise ValueError("it has rows of several partitions")
        return cls(
            entry.file_path,
            partition,
            first,
            last,
            entry.record_count,
            entry.file_size_in_bytes,
            from_us // 1000,
            to_us // 1000,
            entry,
        )


@dataclass(frozen=True)
class WriteTarget:
    """Where and how to write files of one table. Can be pickled, for tasks in other processes."""

    location: str  # of the table
    schema: Schema
    spec: PartitionSpec
    properties: Mapping[str, str]  # of the table
    io_properties: Mapping[str, str]  # of the catalogue: for example the end point and credentials of S3

    @property
    def period(self) -> str:
        return "hour" if self.spec.fields[0].name.endswith("hour") else "day"


@dataclass
class FileWriter:
    """Writes rows as files of one partition and one period each, in the order in which they are added.

    The files become part of the table by a commit. Those of a writer that fails are orphans, which maintenance deletes.
    """

    target: WriteTarget
    max_file_bytes: int = MAX_FILE_BYTES
    _buffers: dict[tuple[int, int], list[pa.RecordBatch]] = field(default_factory=dict)
    _sizes: dict[tuple[int, int], int] = field(default_factory=dict)
    _files: list[DataFile] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._schema = schema_to_pyarrow(self.target.schema)

    def add(self, rows: pa.RecordBatch) -> None:
        """Add rows whose columns are those of the table, by name. Writes the files that are full.

        Columns and fields that the rows do not have are null.
        """
        rows = conform(rows, self._schema)
        for key, part in _split(rows, PERIOD_US[self.target.period]):
            self._buffers.setdefault(key, []).append(part)
            self._sizes[key] = self._sizes.get(key, 0) + part.nbytes
            if self._sizes[key] >= self.max_file_bytes:
                self._write(key)
            elif sum(self._sizes.values()) > MAX_BUFFERED_BYTES:
                self._write(max(self._sizes, key=self._sizes.__getitem__))

    def close(self) -> list[DataFile]:
        """Write the rest and return all files."""
        for key in list(self._buffers):
            self._write(key)
        return self._files

    def _write(self, key: tuple[int, int]) -> None:
        rows = pa.Table.from_batches(self._buffers.pop(key))
        del self._sizes[key]
        self._files.append(write_file(self.target, rows, *key))


def conform(rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return the rows with the columns and types of the schema. What they do not have is null."""
    names = set(rows.schema.names)
    return pa.record_batch(
        [
            rows.column(column.name).cast(column.type) if column.name in names else pa.nulls(len(rows), column.type)
            for column in schema
        ],
        schema=schema,
    )


def write_file(target: WriteTarget, rows: pa.Table, partition: int, period: int) -> DataFile:
    """Write rows of one partition and period, with the table's Arrow schema, as one file. Raises OSError."""
    sink = pa.BufferOutputStream()
    write_parquet(sink, target, [rows])
    return publish_file(target, pa.BufferReader(sink.getvalue()), partition, period)


def write_parquet(sink: Any, target: WriteTarget, chunks: Iterable[pa.Table]) -> None:
    """Write a Parquet file as tables have it; no row group has rows of two chunks."""
    paths = parquet_path_to_id_mapping(target.schema)
    with pq.ParquetWriter(
        sink,
        schema_to_pyarrow(target.schema),
        compression="zstd",
        write_page_checksum=True,
        # A page ends after so many rows at the earliest, and readers hold whole pages: large values need small ones.
        write_batch_size=64,
        use_dictionary=[path for path, field_id in paths.items() if field_id not in PLAIN_COLUMNS],
    ) as writer:
        for chunk in chunks:
            writer.write_table(chunk, row_group_size=ROWS_PER_GROUP)


def publish_file(target: WriteTarget, source: Any, partition: int, period: int) -> DataFile:
    """Copy a Parquet file (an open file or buffer) to its place below the table's location. Raises OSError."""
    digest, size = hashlib.sha256(), 0
    source.seek(0)
    while piece := source.read(_PIECE_BYTES):
        digest.update(piece)
        size += len(piece)
    name = f"{uuid.uuid4().hex[:12]}-{digest.hexdigest()}.parquet"
    directory = f"timestamp_{target.period}={_period_text(target.period, period)}/partition={partition}"
    path = f"{target.location.rstrip('/')}/data/{directory}/{name}"
    io = load_file_io(dict(target.io_properties), path)
    source.seek(0)
    with io.new_output(path).create() as output:
        while piece := source.read(_PIECE_BYTES):
            output.write(piece)
    source.seek(0)
    statistics = data_file_statistics_from_parquet_metadata(
        pq.read_metadata(source),
        compute_statistics_plan(target.schema, dict(target.properties)),
        parquet_path_to_id_mapping(target.schema),
    )
    entry = IcebergFile.from_args(
        content=DataFileContent.DATA,
        file_path=path,
        file_format=FileFormat.PARQUET,
        partition=statistics.partition(target.spec, target.schema),
        file_size_in_bytes=size,
        sort_order_id=None,
        equality_ids=None,
        key_metadata=None,
        **statistics.to_serialized_dict(),
    )
    entry.spec_id = target.spec.spec_id
    return DataFile.of(entry)


def _period_text(period: str, number: int) -> str:
    time = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(**{f"{period}s": number})
    return f"{time:%Y-%m-%d}" if period == "day" else f"{time:%Y-%m-%d-%H}"


def _split(rows: pa.RecordBatch, period_us: int) -> Iterator[tuple[tuple[int, int], pa.RecordBatch]]:
    """Yield (partition, period) and the rows of it, in order."""
    if rows.num_rows == 0:
        return
    partitions = rows.column("partition")
    micros = rows.column("timestamp").cast(pa.int64())
    periods = pc.divide(micros, period_us)
    is_negative = pc.less(pc.subtract(micros, pc.multiply(periods, period_us)), 0)
    periods = pc.subtract(periods, is_negative.cast(pa.int64()))
    keys = pa.table({"partition": partitions, "period": periods}).group_by(["partition", "period"]).aggregate([])
    for key in zip(keys["partition"].to_pylist(), keys["period"].to_pylist(), strict=True):
        if keys.num_rows == 1:
            yield key, rows
        else:
            yield key, rows.filter(pc.and_(pc.equal(partitions, key[0]), pc.equal(periods, key[1])))


def write_rows(target: WriteTarget, batches: Iterable[pa.RecordBatch], **options: Any) -> list[DataFile]:
    """Write all rows and return the files. The arguments are those of FileWriter."""
    writer = FileWriter(target, **options)
    for batch in batches:
        writer.add(batch)
    return writer.close()
