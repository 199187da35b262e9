"""Reads again what a table has lost: from files that are still there, and from the broker."""

from collections.abc import Iterable, Iterator
from contextlib import suppress

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kbroker.archive.archive import ArchiveTable
from kbroker.archive.data_files import DataFile
from kbroker.archive.errors import ArchiveError
from kbroker.archive.offset_ranges import OffsetRange, intersect_ranges, ranges_of, subtract_ranges
from kbroker.archive.verification.file_checks import FileChecker, file_digest
from kbroker.archive.verification.table_files import file_size
from kbroker.client.cluster import ClusterClient
from kbroker.client.consumer import ConsumedRecord, PartitionConsumer
from kbroker.client.offsets import READ_COMMITTED, READ_UNCOMMITTED
from kbroker.common import TopicPartition

_POLL_RECORDS = 10_000
# What reading a damaged file raises.
_DAMAGE = (pa.ArrowException, OSError, ValueError, KeyError, TypeError, MemoryError, ArchiveError)
_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


class Wanted:
    """The offsets that a table has lost, without those that were found."""

    def __init__(self, ranges: dict[int, tuple[OffsetRange, ...]]) -> None:
        self.ranges = dict(ranges)
        self.found_rows = 0

    def take(self, partition: int, rows: pa.Table) -> pa.RecordBatch | None:
        """Return the rows at wanted offsets, each offset once; None if there are none."""
        offsets = rows.column("offset").to_pylist()
        found = intersect_ranges(ranges_of(offsets), self.ranges.get(partition, ()))
        if not found:
            return None
        self.ranges[partition] = subtract_ranges(self.ranges[partition], found)
        seen: set[int] = set()
        mask = []
        for offset in offsets:
            mask.append(offset not in seen and any(start <= offset < end for start, end in found))
            seen.add(offset)
        taken = rows.filter(pa.array(mask)).combine_chunks()
        self.found_rows += len(taken)
        return taken.to_batches()[0]


def rows_of_intact_file(table: ArchiveTable, path: str, wanted: Wanted) -> Iterator[pa.RecordBatch]:
    """Yield the wanted rows of a file that is as kbroker has written it; of another none."""
    io = table.iceberg.io
    with suppress(*_DAMAGE):
        file_size(io, path)
        if file_digest(io, path) == _digest_of_name(path):
            with io.new_input(path).open() as stream, pq.ParquetFile(stream) as parquet:
                if FileChecker(table, ()).column_problem(parquet.schema_arrow) is None:
                    yield from _wanted_rows(parquet, wanted)


def rows_of_damaged_file(table: ArchiveTable, file: DataFile, wanted: Wanted) -> Iterator[pa.RecordBatch]:
    """Yield the wanted rows of a file's undamaged row groups.

    Its footer must be as the table's metadata says. Then its pages have checksums, which show which ones are damaged.
    """
    io, checker = table.iceberg.io, FileChecker(table, ())
    with suppress(*_DAMAGE):
        file_size(io, file.path)
        with (
            io.new_input(file.path).open() as stream,
            pq.ParquetFile(stream, page_checksum_verification=True) as parquet,
        ):
            problem = checker.column_problem(parquet.schema_arrow)
            if problem is None and not checker.differing_statistics(file, parquet.metadata):
                yield from _wanted_rows(parquet, wanted)


def _wanted_rows(parquet: pq.ParquetFile, wanted: Wanted) -> Iterator[pa.RecordBatch]:
    for number in range(parquet.metadata.num_row_groups):
        try:
            rows = parquet.read_row_group(number, use_threads=False)
            rows.validate(full=True)
        except _DAMAGE:
            continue
        for partition in pc.unique(rows.column("partition")).to_pylist():
            taken = wanted.take(partition, rows.filter(pc.equal(rows.column("partition"), partition)))
            if taken is not None:
                yield taken


def last_offsets(table: ArchiveTable, paths: Iterable[str]) -> dict[int, int]:
    """Return the end of the offsets in those of these files that are intact, by partition."""
    ends: dict[int, int] = {}
    io = table.iceberg.io
    for path in paths:
        with suppress(*_DAMAGE):
            file_size(io, path)
            if file_digest(io, path) == _digest_of_name(path):
                with io.new_input(path).open() as stream, pq.ParquetFile(stream) as parquet:
                    rows = parquet.read(["partition", "offset"])
                partition = rows.column("partition")[0].as_py()
                ends[partition] = max(ends.get(partition, 0), pc.max(rows.column("offset")).as_py() + 1)
    return ends


def _digest_of_name(path: str) -> str:
    return path.rpartition("/")[2].removesuffix(".parquet").partition("-")[2]


def rows_of_broker(
    cluster: ClusterClient, tp: TopicPartition, ranges: tuple[OffsetRange, ...], wanted: Wanted, committed_only: bool
) -> Iterator[pa.RecordBatch]:
    """Yield the wanted records of a partition that are in these ranges of its log."""
    isolation_level = READ_COMMITTED if committed_only else READ_UNCOMMITTED
    consumer = PartitionConsumer(cluster, {}, isolation_level=isolation_level)
    for start, end in ranges:
        consumer.seek({tp: start})
        while consumer.positions[tp] < end:
            records = [record for record in consumer.poll(_POLL_RECORDS) if record.offset < end]
            if records and (taken := wanted.take(tp.partition, _table(records))) is not None:
                yield taken


def _table(records: list[ConsumedRecord]) -> pa.Table:
    columns = {
        "partition": pa.array([record.partition for record in records], pa.int32()),
        "offset": pa.array([record.offset for record in records], pa.int64()),
        "timestamp": pa.array([1000 * record.timestamp for record in records], pa.timestamp("us", "UTC")),
        "timestampType": pa.array([record.timestamp_type for record in records], pa.int32()),
        "key": pa.array([record.key for record in records], pa.binary()),
        "value": pa.array([record.value for record in records], pa.binary()),
        "headers": pa.array(
            [[{"key": name, "value": value} for name, value in record.headers] for record in records], _HEADERS
        ),
    }
    return pa.table(columns)
