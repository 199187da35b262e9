"""Reads data files in blocks of some MiB. Blocks and columns of offsets are cached.

A cursor continues in a row group where its last block ended, so a consumer that reads a file from its start to its end
decodes each page once. A row group whose offsets do not ascend is read and sorted as a whole.
"""

import threading
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.io import FileIO

from kbroker.archive.history.block_cache import HistoryBlockCache
from kbroker.archive.history.blocks import COLUMNS, Block, integers, make_block, merge_blocks

BLOCK_BYTES = 4 << 20
MAX_CURSORS, MAX_FOOTERS = 32, 256
# So much of a column is read at once.
_READ_BYTES = 1 << 20
_MAX_OFFSET = (1 << 63) - 1


class GroupRange(NamedTuple):
    """A row group of a file by its statistics."""

    number: int
    rows: int
    block_rows: int  # so many rows make a block
    first: int  # the lowest offset
    last: int  # the highest offset
    to_us: int | None  # the highest timestamp in microseconds, if it is known


class _Footer(NamedTuple):
    metadata: pq.FileMetaData
    groups: tuple[GroupRange, ...]  # by their first offsets


class _Cursor:
    """Reads the blocks of a row group in their order."""

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        self.next = 0  # the number of the next block
        self._batches = batches
        self._rest: pa.Table | None = None

    def read(self, rows: int) -> pa.Table:
        """Return the next block, of so many rows unless it is the last one."""
        parts = [] if self._rest is None else [self._rest]
        count = sum(part.num_rows for part in parts)
        while count < rows and (batch := next(self._batches, None)) is not None:
            parts.append(pa.Table.from_batches([batch]))
            count += batch.num_rows
        table = pa.concat_tables(parts)
        self._rest = table.slice(rows) if count > rows else None
        self.next += 1
        return table.slice(0, rows)


def first_rows(sources: Iterable[tuple[int, Callable[[], Block | None]]]) -> Block | None:
    """Return the first rows of sources, which are ordered by their first offsets, merged by offset.

    A source loads a block that has all its rows from a certain offset up to the block's last one. So has the result.
    """
    blocks: list[Block] = []
    last = 0
    for first, load in sources:
        if blocks and first > last:
            break
        block = load()
        if block is not None:
            last = min(last, block.last) if blocks else block.last
            blocks.append(block)
    if len(blocks) < 2:
        return blocks[0] if blocks else None
    return merge_blocks([block.slice(0, block.position(last + 1)) for block in blocks])


class FileReader:
    """Reads the files of any table. Thread-safe. Its methods raise OSError or pyarrow's ArrowException."""

    def __init__(self, cache: HistoryBlockCache | None = None, block_bytes: int = BLOCK_BYTES) -> None:
        self.cache = cache or HistoryBlockCache()
        self._block_bytes = block_bytes
        self._footers: OrderedDict[str, _Footer] = OrderedDict()
        self._cursors: OrderedDict[_Cursor, tuple[str, int]] = OrderedDict()
        self._lock = threading.Lock()

    def block_at(self, io: FileIO, path: str, offset: int) -> Block | None:
        """Return a block with all rows of a file from this offset to the block's last one; None if there are none.

        It may have rows before the offset.
        """
        groups = (group for group in self._footer(io, path).groups if group.last >= offset)
        return first_rows((group.first, partial(self._group_block, io, path, group, offset)) for group in groups)

    def first_since(self, io: FileIO, path: str, timestamp_us: int) -> tuple[int, int] | None:
        """Return the lowest offset whose timestamp is not lower, and that timestamp in microseconds."""
        footer = self._footer(io, path)
        best: tuple[int, int] | None = None
        for group in footer.groups:
            if best is not None and group.first > best[0]:
                break
            if group.to_us is not None and group.to_us < timestamp_us:
                continue
            rows = self._open(io, path, footer.metadata).read_row_group(
                group.number, columns=["offset", "timestamp"], use_threads=False
            )
            micros = rows["timestamp"].cast(pa.int64())
            rows = pa.table({"offset": rows["offset"], "micros": micros}).filter(pc.greater_equal(micros, timestamp_us))
            if rows.num_rows:
                found = pc.index(rows["offset"], pc.min(rows["offset"])).as_py()
                candidate = rows["offset"][found].as_py(), rows["micros"][found].as_py()
                best = candidate if best is None else min(best, candidate)
        return best

    def forget(self, path: str) -> None:
        """Close a file: reading it has failed."""
        with self._lock:
            self._footers.pop(path, None)
            for cursor in [cursor for cursor, (cursor_path, _) in self._cursors.items() if cursor_path == path]:
                del self._cursors[cursor]

    def _group_block(self, io: FileIO, path: str, group: GroupRange, offset: int) -> Block | None:
        offsets, is_ascending = self.cache.get((path, group.number), lambda: self._read_offsets(io, path, group))
        if not is_ascending:
            block = self.cache.get((path, group.number, -1), lambda: self._read_sorted(io, path, group))
            return block if block.last >= offset else None
        row = bisect_left(integers(offsets), offset)
        if row == len(offsets):
            return None
        number = row // group.block_rows
        return self.cache.get((path, group.number, number), lambda: self._read_block(io, path, group, number))

    def _read_offsets(self, io: FileIO, path: str, group: GroupRange) -> tuple[tuple[pa.Int64Array, bool], int]:
        file = self._open(io, path, self._footer(io, path).metadata)
        rows = file.read_row_group(group.number, columns=["offset"], use_threads=False)
        offsets = rows["offset"].combine_chunks()
        is_ascending = len(offsets) < 2 or pc.all(pc.greater(offsets[1:], offsets[:-1])).as_py()
        return (offsets, is_ascending), offsets.nbytes

    def _read_sorted(self, io: FileIO, path: str, group: GroupRange) -> tuple[Block, int]:
        file = self._open(io, path, self._footer(io, path).metadata)
        block = make_block(
            file.read_row_group(group.number, columns=list(COLUMNS), use_threads=False).sort_by("offset")
        )
        return block, block.size

    def _read_block(self, io: FileIO, path: str, group: GroupRange, number: int) -> tuple[Block, int]:
        cursor = self._take_cursor(path, group.number, number)
        if cursor is None:
            file = self._open(io, path, self._footer(io, path).metadata)
            cursor = _Cursor(
                file.iter_batches(group.block_rows, [group.number], columns=list(COLUMNS), use_threads=False)
            )
        while cursor.next < number:
            cursor.read(group.block_rows)
        block = make_block(cursor.read(group.block_rows))
        if cursor.next * group.block_rows < group.rows:
            with self._lock:
                self._cursors[cursor] = path, group.number
                while len(self._cursors) > MAX_CURSORS:
                    self._cursors.popitem(last=False)
        return block, block.size

    def _take_cursor(self, path: str, group: int, number: int) -> _Cursor | None:
        """Return the cursor that is nearest before a block. No other thread uses it until it is put back."""
        with self._lock:
            cursors = [
                cursor for cursor, key in self._cursors.items() if key == (path, group) and cursor.next <= number
            ]
            if not cursors:
                return None
            nearest = max(cursors, key=lambda cursor: cursor.next)
            del self._cursors[nearest]
            return nearest

    def _footer(self, io: FileIO, path: str) -> _Footer:
        with self._lock:
            footer = self._footers.get(path)
            if footer is not None:
                self._footers.move_to_end(path)
                return footer
        metadata = self._open(io, path, None).metadata
        groups = (_row_group(metadata, number, self._block_bytes) for number in range(metadata.num_row_groups))
        footer = _Footer(metadata, tuple(sorted(groups, key=lambda group: group.first)))
        with self._lock:
            self._footers[path] = footer
            while len(self._footers) > MAX_FOOTERS:
                self._footers.popitem(last=False)
        return footer

    def _open(self, io: FileIO, path: str, metadata: pq.FileMetaData | None) -> pq.ParquetFile:
        source = io.new_input(path).open()
        return pq.ParquetFile(
            source, metadata=metadata, pre_buffer=False, buffer_size=_READ_BYTES, page_checksum_verification=True
        )


def _row_group(metadata: pq.FileMetaData, number: int, block_bytes: int) -> GroupRange:
    """Without statistics, which kbroker writes but others need not, a row group may have any offset."""
    group = metadata.row_group(number)
    columns = (group.column(index) for index in range(group.num_columns))
    statistics = {column.path_in_schema: column.statistics for column in columns}
    offsets, times = (_with_bounds(statistics.get(name)) for name in ("offset", "timestamp"))
    row_bytes = group.total_byte_size // max(group.num_rows, 1)
    return GroupRange(
        number,
        group.num_rows,
        max(1, min(group.num_rows, block_bytes // max(row_bytes, 1))),
        0 if offsets is None else offsets.min,
        _MAX_OFFSET if offsets is None else offsets.max,
        None if times is None else times.max_raw,
    )


def _with_bounds(statistics: pq.Statistics | None) -> pq.Statistics | None:
    return statistics if statistics is not None and statistics.has_min_max else None
