"""Rows of archives for tests, and commits of them without Spark."""

import pyarrow as pa

from kbroker.archive.archive import ArchiveTable
from kbroker.archive.data_files import DataFile, write_rows
from kbroker.archive.offset_ranges import OffsetRange

DAY_MS = 86_400_000
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def make_rows(
    partition: int = 0, first: int = 0, count: int = 1, timestamp_ms: int = 0, value: bytes | None = b"value"
) -> pa.RecordBatch:
    """Return `count` rows from offset `first`; each is a millisecond later than the one before."""
    timestamps = [1000 * (timestamp_ms + number) for number in range(count)]
    return pa.record_batch(
        {
            "partition": pa.array([partition] * count, pa.int32()),
            "offset": pa.array(range(first, first + count), pa.int64()),
            "timestamp": pa.array(timestamps, pa.timestamp("us", "UTC")),
            "timestampType": pa.array([0] * count, pa.int32()),
            "key": pa.array([b"key-%d" % offset for offset in range(first, first + count)], pa.binary()),
            "value": pa.array([value] * count, pa.binary()),
            "headers": pa.array([[{"key": "h", "value": b"x"}]] * count, HEADERS),
        }
    )


def append_rows(
    table: ArchiveTable, partition: int = 0, first: int = 0, count: int = 1, timestamp_ms: int = 0
) -> DataFile:
    """Write and commit a file with `count` rows from offset `first`."""
    (file,) = write_rows(table.write_target(), [make_rows(partition, first, count, timestamp_ms)])
    state = table.state.with_covered([(partition, OffsetRange(first, first + count))])
    table.commit("append", state, add=[file])
    return file


def remove_as_another_program(table: ArchiveTable, file: DataFile) -> None:
    """Remove a file of a table without kbroker's knowledge."""
    with table.iceberg.transaction() as transaction, transaction.update_snapshot().overwrite() as snapshot:
        snapshot.delete_data_file(file.entry)
