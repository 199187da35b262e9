"""Checks data files: their bytes, columns and rows. A file is read in pieces, never as a whole."""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.io.pyarrow import (
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
    schema_to_pyarrow,
)

from kbroker.archive.archive import ArchiveTable
from kbroker.archive.data_files import PERIOD_US, DataFile
from kbroker.archive.offset_ranges import OffsetRange, merge_ranges, subtract_ranges
from kbroker.archive.verification.findings import Finding, difference, note
from kbroker.archive.verification.state_checks import uncovered_offsets
from kbroker.archive.verification.table_files import error_text, file_size
from kbroker.common import TopicPartition

THREADS = 4
_PIECE_BYTES = 1 << 20
_BATCH_ROWS = 8192
_MAX_FOOTER_BYTES = 64 << 20
_ID = b"PARQUET:field_id"
# What Iceberg allows a column to be read as.
_WIDER = {("int32", "int64"), ("float", "double")}


class RowGroup(NamedTuple):
    """A row group of a readable file, as its rows say."""

    file: DataFile
    number: int  # in the file, from 0
    first: int  # the lowest offset
    last: int  # the highest offset, inclusive
    is_ascending: bool  # strictly, so no offset is twice in it


@dataclass
class FileCheck:
    """What was found in one file."""

    file: DataFile
    is_missing: bool = False
    is_readable: bool = False
    bytes: int = 0
    rows: int = 0
    groups: list[RowGroup] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)


class FileChecker:
    """Checks the files of one state of a table."""

    def __init__(self, table: ArchiveTable, files: Sequence[DataFile]) -> None:
        metadata = table.iceberg.metadata
        self._table = table
        self._io: Any = table.iceberg.io
        self._types = {
            int((column.metadata or {})[_ID]): (column.name, column.type)
            for column in schema_to_pyarrow(table.iceberg.schema())
        }
        self._plan = compute_statistics_plan(table.iceberg.schema(), metadata.properties)
        self._ids = parquet_path_to_id_mapping(table.iceberg.schema())
        self._period = table.write_target().period
        self._by_digest = {file.sha256: file.path for file in files}
        self._sizes = {file.size for file in files}

    def check_all(self, files: Sequence[DataFile], advance: Callable[[int], None]) -> Iterator[FileCheck]:
        """Read each file completely. `advance` is called with the bytes that were read."""
        with ThreadPoolExecutor(THREADS) as pool:
            for check in pool.map(self.check, files):
                advance(check.file.size)
                yield check

    def check(self, file: DataFile) -> FileCheck:
        """Read a file completely."""
        check = FileCheck(file)
        try:
            size = file_size(self._io, file.path)
            check.bytes = size
            # A file of a size that none has may be huge.
            digest = file_digest(self._io, file.path) if size in self._sizes else ""
        except FileNotFoundError:
            check.is_missing = True
            self._report(check, "missing file", f"was committed with {file.rows} rows, and is missing")
            return check
        except (OSError, pa.ArrowException) as error:
            self._report(check, "unreadable file", error_text(error))
            return check
        is_intact = digest == file.sha256 if file.sha256 is not None else size == file.size
        if not is_intact:
            self._report(check, "changed file", self._change(file, size, digest))
        if problem := self._read_rows(check, size, is_intact):
            self._report(check, "unreadable file", problem)
            check.groups.clear()
        else:
            check.is_readable = True
        return check

    def _report(self, check: FileCheck, kind: str, text: str, offsets: Sequence[OffsetRange] = ()) -> None:
        file = check.file
        tp = TopicPartition(self._table.topic, file.partition)
        check.findings.append(difference(kind, text, tp, file.path, offsets or [file.offsets]))

    def _change(self, file: DataFile, size: int, digest: str) -> str:
        if digest in self._by_digest:
            return f"has the content of {self._by_digest[digest]}"
        if size != file.size:
            return f"has {size} bytes instead of {file.size}"
        return "its bytes are not those that were committed"

    def _read_rows(self, check: FileCheck, size: int, is_intact: bool) -> str | None:
        """Read every value; return why the file cannot be read, or None."""
        try:
            with self._io.new_input(check.file.path).open() as stream:
                if not is_intact:
                    stream.seek(max(0, size - 8))
                    footer_bytes = int.from_bytes(stream.read(4), "little")
                    if _MAX_FOOTER_BYTES < footer_bytes < size:
                        return f"its footer claims to have {footer_bytes} bytes"
                with pq.ParquetFile(
                    stream, buffer_size=_PIECE_BYTES, pre_buffer=False, page_checksum_verification=True
                ) as parquet:
                    if problem := self.column_problem(parquet.schema_arrow):
                        self._report(check, "columns", problem)
                        return None if is_intact and not parquet.metadata.num_rows else problem
                    if is_intact:
                        self._compare_statistics(check, parquet.metadata)
                    _RowCheck(self, check).run(parquet, is_intact)
        except (pa.ArrowException, OSError, ValueError, MemoryError, OverflowError) as error:
            return error_text(error)
        return None

    def column_problem(self, schema: pa.Schema) -> str | None:
        """Return how the columns of a file differ from those of the table, or None."""
        found = {}
        for column in schema:
            field_id = (column.metadata or {}).get(_ID)
            if field_id is None or int(field_id) not in self._types:
                return f"column {column.name} is unexpected"
            found[int(field_id)] = column
        required = [name for name in self._table.iceberg.schema().as_arrow() if not name.nullable]
        for field_id, (name, expected) in self._types.items():
            column = found.get(field_id)
            if column is None:
                if any(item.name == name for item in required):
                    return f"column {name} is missing"
            elif column.name != name:
                return f"column {name} has the name {column.name}"
            elif not _is_readable_as(column.type, expected):
                return f"column {name} has type {column.type} instead of {expected}"
        return None

    def differing_statistics(self, file: DataFile, metadata: pq.FileMetaData) -> list[str]:
        """Return the names of what the manifest says of a file, and its footer does not.

        Readers skip rows because of it. Raises ValueError for a footer without usable statistics.
        """
        try:
            found = data_file_statistics_from_parquet_metadata(metadata, self._plan, self._ids).to_serialized_dict()
        except Exception as error:  # pyiceberg raises many types for unexpected columns
            raise ValueError(f"its footer has no usable statistics ({error_text(error)})") from error
        return [name for name, value in found.items() if _differs(getattr(file.entry, name, None), value)]

    def _compare_statistics(self, check: FileCheck, metadata: pq.FileMetaData) -> None:
        if differing := self.differing_statistics(check.file, metadata):
            text = f"the table's {', '.join(differing)} are not those of the file's footer"
            self._report(check, "layout", text)
        if check.file.size != check.bytes:
            self._report(check, "layout", f"the table says that it has {check.file.size} bytes, not {check.bytes}")

    @property
    def table(self) -> ArchiveTable:
        return self._table

    @property
    def period_us(self) -> int:
        return PERIOD_US[self._period]


def file_digest(io: Any, path: str) -> str:
    """Return the SHA-256 of a file's bytes in hexadecimal. Raises OSError."""
    digest = hashlib.sha256()
    with io.new_input(path).open() as stream:
        while data := stream.read(_PIECE_BYTES):
            digest.update(data)
    return digest.hexdigest()


def _differs(committed: Any, found: Any) -> bool:
    """Compare what both have: the table's metrics modes and columns may have changed since the file was written."""
    if isinstance(committed, Mapping) and isinstance(found, Mapping):
        return any(committed[key] != found[key] for key in committed.keys() & found.keys())
    return committed is not None and committed != found


def _is_readable_as(found: pa.DataType, expected: pa.DataType) -> bool:
    """Compare types without the names of list items and without nullability."""
    if pa.types.is_list(found) or pa.types.is_large_list(found):
        return (pa.types.is_list(expected) or pa.types.is_large_list(expected)) and _is_readable_as(
            found.value_type, expected.value_type
        )
    if pa.types.is_struct(found):
        return pa.types.is_struct(expected) and all(
            any(item.name == other.name and _is_readable_as(other.type, item.type) for other in found)
            for item in expected
            if not item.nullable or found.get_field_index(item.name) >= 0
        )
    names = tuple(str(kind).removeprefix("large_") for kind in (found, expected))
    return names[0] == names[1] or names in _WIDER


class _RowCheck:
    """Checks the rows of one file while they are read."""

    def __init__(self, checker: FileChecker, check: FileCheck) -> None:
        self._checker = checker
        self._check = check
        self._partitions: set[int] = set()
        self._bounds: list[tuple[int, int]] = []  # of timestamps
        self._misdated = 0
        self._previous = -1  # the highest offset so far
        self._is_ascending = True
        self._uncovered: list[OffsetRange] = []
        self._offsets: list[OffsetRange] = []

    def run(self, parquet: pq.ParquetFile, is_intact: bool) -> None:
        """Read all rows. Raises what pyarrow raises."""
        check, file = self._check, self._check.file
        for index in range(parquet.metadata.num_row_groups):
            first, last, is_ascending, end = 2**63, -1, True, -1
            for batch in parquet.iter_batches(_BATCH_ROWS, row_groups=[index], use_threads=False):
                if not batch.num_rows:
                    continue
                batch.validate(full=True)
                low, high, ascends = self._add(batch, keeps_offsets=not is_intact)
                is_ascending = is_ascending and ascends and low > end
                first, last, end = min(first, low), max(last, high), high
            if last >= 0:
                self._is_ascending = self._is_ascending and is_ascending and first > self._previous
                self._previous = max(self._previous, last)
                check.groups.append(RowGroup(file, index, first, last, is_ascending))
        self._compare()

    def _add(self, batch: pa.RecordBatch, keeps_offsets: bool) -> tuple[int, int, bool]:
        """Count the rows of a batch. Returns its lowest and highest offset, and whether they ascend strictly."""
        self._check.rows += batch.num_rows
        offsets, times = batch.column("offset"), batch.column("timestamp").cast(pa.int64())
        low, high = _min_max(offsets)
        ascends = batch.num_rows == 1 or pc.min(pc.pairwise_diff(offsets)).as_py() > 0
        self._partitions.update(_min_max(batch.column("partition")))
        bounds = _min_max(times)
        self._bounds.append(bounds)
        start = self._check.file.period * self._checker.period_us
        end = start + self._checker.period_us
        if bounds[0] < start or bounds[1] >= end:
            is_within = pc.and_(pc.greater_equal(times, start), pc.less(times, end))
            self._misdated += batch.num_rows - (pc.sum(is_within).as_py() or 0)
        partition, state = self._check.file.partition, self._checker.table.state
        if keeps_offsets:
            self._offsets = list(merge_ranges([*self._offsets, *_ranges(offsets)]))
        if uncovered_offsets(state, partition, [OffsetRange(low, high + 1)]):
            self._uncovered += uncovered_offsets(state, partition, _ranges(offsets))
        return low, high, ascends

    def _compare(self) -> None:
        """Compare all rows with what was committed."""
        check, file, report = self._check, self._check.file, self._checker._report
        tp = TopicPartition(self._checker.table.topic, file.partition)
        if not check.groups:
            report(check, "rows", f"all {file.rows} committed rows are missing")
            return
        changes = []
        first, last = min(group.first for group in check.groups), max(group.last for group in check.groups)
        times = min(low for low, _ in self._bounds) // 1000, max(high for _, high in self._bounds) // 1000
        if check.rows != file.rows:
            changes.append(f"{check.rows} rows instead of {file.rows}")
        if self._partitions != {file.partition}:
            changes.append(f"rows of partition {min(self._partitions - {file.partition})}")
        if (first, last) != (file.first, file.last):
            changes.append(f"offsets {first} to {last} instead of {file.first} to {file.last}")
        if times != (file.from_ms, file.to_ms):
            changes.append(f"timestamps {times[0]} to {times[1]} instead of {file.from_ms} to {file.to_ms}")
        if changes:
            report(check, "rows", "; ".join(changes))
            # Only if each offset had a row when it was committed, those that are gone are known.
            is_dense = file.rows == file.last - file.first + 1
            if self._offsets and is_dense and (lost := subtract_ranges([file.offsets], self._offsets)):
                report(check, "rows", "committed rows are missing", lost)
        if self._misdated:
            text = f"{self._misdated} rows have another {self._checker._period} (UTC) than the file"
            report(check, "date", text)
        if self._uncovered:
            report(check, "uncovered", "rows that no commit covers, or that were erased", merge_ranges(self._uncovered))
        if not self._is_ascending:
            text = "its rows are not ordered by offset: reading it is slower"
            check.findings.append(note("unordered", text, tp, file.path))


def _min_max(values: pa.Array) -> tuple[int, int]:
    """Raises ValueError if there is a null."""
    if values.null_count:
        raise ValueError("a column that must not have nulls has one")
    found = pc.min_max(values).as_py()
    return found["min"], found["max"]


def _ranges(offsets: pa.Array) -> tuple[OffsetRange, ...]:
    """Return the offsets of rows as ranges."""
    ordered = offsets.take(pc.sort_indices(offsets))
    breaks = pc.indices_nonzero(pc.greater(pc.pairwise_diff(ordered)[1:], 1)).to_pylist()
    starts = [0, *(index + 1 for index in breaks)]
    ends = [*breaks, len(ordered) - 1]
    return tuple(
        OffsetRange(ordered[start].as_py(), ordered[end].as_py() + 1) for start, end in zip(starts, ends, strict=True)
    )
