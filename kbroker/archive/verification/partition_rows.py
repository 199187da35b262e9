"""Reads the rows of one partition in the order of their offsets, from any number of files. Memory is bounded."""

from bisect import bisect_left
from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kbroker.archive.archive import ArchiveTable
from kbroker.archive.offset_ranges import OffsetRange, merge_ranges, ranges_of
from kbroker.archive.verification.file_checks import RowGroup
from kbroker.archive.verification.findings import Finding, difference, note
from kbroker.common import TopicPartition

# Row groups that are kept; one that is needed again after that is read again.
MAX_CACHED_BYTES = 128 << 20
WINDOW_OFFSETS = 1 << 20
# Findings of one kind that are reported; the others are only counted.
MAX_REPORTED = 1000


class PartitionRows:
    """The rows of some columns, with the index of their file in `paths` as the column `file`."""

    def __init__(self, table: ArchiveTable, groups: Iterable[RowGroup], columns: Sequence[str]) -> None:
        self._io: Any = table.iceberg.io
        self._columns = list(dict.fromkeys([*columns, "offset"]))
        self.groups = sorted(groups, key=lambda group: (group.first, group.last))
        self.paths = list(dict.fromkeys(group.file.path for group in self.groups))
        self._indexes = {path: index for index, path in enumerate(self.paths)}
        self._begun = 0  # groups that begin before the end of the last range
        self._active: list[RowGroup] = []
        self._cache: OrderedDict[tuple[str, int], pa.Table] = OrderedDict()
        self._cached_bytes = 0

    def take(self, start: int, end: int) -> pa.Table | None:
        """Return the rows at the offsets [start, end), ordered; None if there are none.

        Call it with ascending ranges. Raises OSError and pa.ArrowException.
        """
        while self._begun < len(self.groups) and self.groups[self._begun].first < end:
            self._active.append(self.groups[self._begun])
            self._begun += 1
        for group in [group for group in self._active if group.last < start]:
            self._active.remove(group)
            self._forget((group.file.path, group.number))
        parts = [part for group in self._active if (part := self._slice(group, start, end)).num_rows]
        if not parts:
            return None
        parts.sort(key=lambda part: part.column("offset")[0].as_py())
        rows = pa.concat_tables(parts).combine_chunks()
        ends = [(part.column("offset")[0].as_py(), part.column("offset")[-1].as_py()) for part in parts]
        if any(last >= following for (_, last), (following, _) in pairwise(ends)):
            rows = rows.take(pc.sort_indices(rows.column("offset")))
        return rows

    def next_offset(self, offset: int) -> int | None:
        """Return the lowest offset from `offset` on that may have a row."""
        if any(group.last >= offset for group in self._active):
            return offset
        return max(offset, self.groups[self._begun].first) if self._begun < len(self.groups) else None

    def _slice(self, group: RowGroup, start: int, end: int) -> pa.Table:
        rows = self._load(group)
        if start <= group.first and group.last < end:
            return rows
        if not len(rows):
            return rows
        low, high = bisect_left(offsets_of(rows), start), bisect_left(offsets_of(rows), end)
        part = rows.slice(low, high - low)
        # A slice keeps its whole row group in memory; a copy does not.
        return part if self._cached_bytes <= MAX_CACHED_BYTES else part.take(pa.array(range(len(part)), pa.int64()))

    def _load(self, group: RowGroup) -> pa.Table:
        """Return the rows of a group in one chunk, ordered."""
        key = (group.file.path, group.number)
        if key in self._cache:
            self._cache.move_to_end(key)
            return self._cache[key]
        with self._io.new_input(group.file.path).open() as stream, pq.ParquetFile(stream) as parquet:
            columns = [name for name in self._columns if name in parquet.schema_arrow.names]
            rows = parquet.read_row_group(group.number, columns=columns).combine_chunks()
        if not group.is_ascending:
            rows = rows.take(pc.sort_indices(rows.column("offset"))).combine_chunks()
        index = pa.array([self._indexes[group.file.path]], pa.int32())
        rows = rows.append_column("file", index.take(pa.array([0] * len(rows), pa.int8())))
        self._cache[key] = rows
        self._cached_bytes += rows.nbytes
        while self._cached_bytes > MAX_CACHED_BYTES and len(self._cache) > 1:
            self._forget(next(iter(self._cache)))
        return rows

    def _forget(self, key: tuple[str, int]) -> None:
        if key in self._cache:
            self._cached_bytes -= self._cache.pop(key).nbytes


def offsets_of(rows: pa.Table) -> memoryview:
    """Return the offsets of rows that are in one chunk."""
    column = rows.column("offset").chunk(0)
    return memoryview(column.buffers()[1]).cast("q")[column.offset : column.offset + len(column)]


def find_duplicates(table: ArchiveTable, partition: int, groups: Iterable[RowGroup]) -> list[Finding]:
    """Report offsets that have more than one row. Only row groups whose offsets overlap are read again."""
    found: dict[tuple[str, ...], list[int]] = defaultdict(list)
    count = 0
    for cluster in _overlapping(groups):
        rows = PartitionRows(table, cluster, [])
        for start, end in windows(rows):
            offsets = rows.take(start, end)
            if offsets is None:
                continue
            values, files = offsets.column("offset").combine_chunks(), offsets.column("file").combine_chunks()
            equal = pc.indices_nonzero(pc.equal(pc.pairwise_diff(values)[1:], 0)).to_pylist()
            count += len(equal)
            for index in equal[:MAX_REPORTED]:
                paths = {rows.paths[files[index].as_py()], rows.paths[files[index + 1].as_py()]}
                found[tuple(sorted(paths))].append(values[index].as_py())
    tp = TopicPartition(table.topic, partition)
    findings = []
    for (first, *others), listed in found.items():
        text = f"also in {', '.join(others)}" if others else "more than once in this file"
        findings.append(difference("doubled", text, tp, first, ranges_of(listed)))
    return [*findings, *note_omitted(count, "duplicate records")]


def note_omitted(count: int, description: str) -> list[Finding]:
    """Return a note if there are more findings of a kind than are reported."""
    text = f"only the first {MAX_REPORTED} {description} are reported"
    return [note("more", text)] if count > MAX_REPORTED else []


def _overlapping(groups: Iterable[RowGroup]) -> Iterator[list[RowGroup]]:
    """Yield the sets of row groups whose offsets overlap, and single ones whose offsets do not ascend."""
    cluster: list[RowGroup] = []
    end = -1
    for group in sorted(groups, key=lambda group: (group.first, group.last)):
        if cluster and group.first > end:
            if len(cluster) > 1 or not cluster[0].is_ascending:
                yield cluster
            cluster = []
        cluster.append(group)
        end = max(end, group.last) if len(cluster) > 1 else group.last
    if cluster and (len(cluster) > 1 or not cluster[0].is_ascending):
        yield cluster


def windows(rows: PartitionRows) -> Iterator[OffsetRange]:
    """Yield ranges that contain all offsets of the groups."""
    covered = merge_ranges(OffsetRange(group.first, group.last + 1) for group in rows.groups)
    for start, end in covered:
        while (position := rows.next_offset(start)) is not None and position < end:
            start = position + WINDOW_OFFSETS
            yield OffsetRange(position, min(start, end))
