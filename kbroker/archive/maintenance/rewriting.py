"""Reads data files with all checks, and writes their rows to new files. The memory does not depend on their sizes."""

import hashlib
import tempfile
from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import schema_to_pyarrow

from kbroker.archive.archive import ArchiveTable
from kbroker.archive.data_files import ROWS_PER_GROUP, DataFile, conform, publish_file, write_parquet
from kbroker.archive.errors import ArchiveError

_PIECE_BYTES = 4 << 20
# Uncompressed sizes. A row group may be larger by one record.
_BATCH_BYTES, _GROUP_BYTES = 8 << 20, 64 << 20


class DamagedFileError(ArchiveError):
    """A data file does not have the rows that the table says. The message begins with its path."""

    def __init__(self, file: DataFile, problem: str) -> None:
        super().__init__(f"{file.path}: {problem}")
        self.path = file.path
        self.problem = problem


def find_damage(io: FileIO, file: DataFile) -> str:
    """Return the problem of a file, or an empty string if its bytes are those that were committed."""
    return find_damage_of(io, file.path, file.size, file.sha256)


def find_damage_of(io: FileIO, path: str, committed_size: int, sha256: str | None) -> str:
    """Like `find_damage`, for any file; without a checksum only its size is compared."""
    digest, size = hashlib.sha256(), 0
    try:
        with io.new_input(path).open() as source:
            while piece := source.read(_PIECE_BYTES):
                digest.update(piece)
                size += len(piece)
    except FileNotFoundError:
        return "it is missing"
    except OSError as error:
        return f"it cannot be read ({error.strerror or str(error).partition(chr(10))[0]})"
    if size != committed_size or sha256 not in (None, digest.hexdigest()):
        return "its bytes are not those that were committed"
    return ""


def read_rows(table: ArchiveTable, file: DataFile, columns: Sequence[str] = ()) -> Iterator[pa.Table]:
    """Yield the rows of a file, ascending by offset, in pieces of some megabytes.

    The columns are the current ones of the table, or some of those that each file has. Raises DamagedFileError.
    """
    try:
        with table.iceberg.io.new_input(file.path).open() as source:
            parquet = pq.ParquetFile(source, page_checksum_verification=True)
            offsets = parquet.read(columns=["offset"])["offset"]
            if len(offsets) != file.rows or _bounds(offsets) != (file.first, file.last):
                raise DamagedFileError(file, "its rows are not those that were committed")
            pieces = _read_pieces(table, parquet, columns)
            if is_ascending(offsets):
                yield from pieces
            else:
                yield pa.concat_tables(pieces).sort_by("offset")
    except (OSError, pa.ArrowException, KeyError, ValueError) as error:
        raise DamagedFileError(file, str(error).partition("\n")[0]) from error


def is_ascending(offsets: pa.ChunkedArray) -> bool:
    values = offsets.combine_chunks()
    return len(values) < 2 or bool(pc.all(pc.less_equal(values[:-1], values[1:])).as_py())


def _bounds(offsets: pa.ChunkedArray) -> tuple[int, int]:
    bounds = pc.min_max(offsets)
    return bounds["min"].as_py(), bounds["max"].as_py()


def _read_pieces(table: ArchiveTable, parquet: pq.ParquetFile, columns: Sequence[str]) -> Iterator[pa.Table]:
    schema = schema_to_pyarrow(table.iceberg.schema())
    for group in range(parquet.num_row_groups):
        metadata = parquet.metadata.row_group(group)
        rows = max(1, metadata.num_rows * _BATCH_BYTES // max(1, metadata.total_byte_size))
        for batch in parquet.iter_batches(min(rows, ROWS_PER_GROUP), [group], columns or None):
            if columns:
                yield pa.Table.from_batches([batch])
            else:
                yield pa.Table.from_batches([conform(batch, schema)])


def merge_rows(table: ArchiveTable, files: Sequence[DataFile]) -> Iterator[pa.Table]:
    """Yield the rows of files of one partition, ascending by offset. Their offset ranges may overlap."""
    overlapping: list[DataFile] = []
    for file in sorted(files, key=lambda file: file.first):
        if overlapping and file.first > max(each.last for each in overlapping):
            yield from _merge_overlapping(table, overlapping)
            overlapping = []
        overlapping.append(file)
    yield from _merge_overlapping(table, overlapping)


def _merge_overlapping(table: ArchiveTable, files: Sequence[DataFile]) -> Iterator[pa.Table]:
    if len(files) == 1:
        yield from read_rows(table, files[0])
        return
    sources = [read_rows(table, file) for file in files]
    heads = {index: next(source) for index, source in enumerate(sources)}
    while heads:
        # All rows up to the lowest last offset of the pieces that are in memory can be written.
        limit = min(head["offset"][-1].as_py() for head in heads.values())
        parts = []
        for index, head in list(heads.items()):
            count = pc.sum(pc.less_equal(head["offset"], limit)).as_py()
            parts.append(head[:count])
            heads[index] = head[count:]
            if count == len(head):
                following = next(sources[index], None)
                if following is None:
                    del heads[index]
                else:
                    heads[index] = following
        yield pa.concat_tables(parts).sort_by("offset")


def write_rows_as_file(table: ArchiveTable, rows: Iterable[pa.Table], partition: int, period: int) -> DataFile | None:
    """Write rows, ascending by offset, as one file; return None if there are none. Raises OSError."""
    written = 0

    def counted() -> Iterator[pa.Table]:
        nonlocal written
        for group in _group(rows):
            written += len(group)
            yield group

    with tempfile.TemporaryFile() as buffer:
        target = table.write_target()
        write_parquet(buffer, target, counted())
        return publish_file(target, buffer, partition, period) if written else None


def _group(rows: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Join pieces into row groups."""
    parts: list[pa.Table] = []
    count = size = 0
    for piece in rows:
        while len(piece):
            part = piece[: ROWS_PER_GROUP - count]
            piece = piece[len(part) :]
            parts.append(part)
            count += len(part)
            size += part.nbytes
            if count == ROWS_PER_GROUP or size >= _GROUP_BYTES:
                yield pa.concat_tables(parts)
                parts, count, size = [], 0, 0
    if parts:
        yield pa.concat_tables(parts)
