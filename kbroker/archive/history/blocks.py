"""A block: consecutive rows of a file as Arrow arrays, prepared for record batches (pure)."""

from bisect import bisect_left
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from kbroker.archive.history.varints import BINARY, EMPTY, encode_lengths, join

COLUMNS = ("offset", "timestamp", "timestampType", "key", "value", "headers")


class Block(NamedTuple):
    """Rows with ascending offsets. The arrays have equal lengths, and no nulls."""

    offsets: pa.Int64Array
    timestamps: pa.Int64Array  # milliseconds
    types: pa.Int32Array  # 1 is LogAppendTime
    # Of each record all that does not depend on its batch: key, value and headers as they are encoded in a record.
    contents: pa.LargeBinaryArray
    size: int  # in memory, in bytes

    def __len__(self) -> int:
        return len(self.offsets)

    @property
    def first(self) -> int:
        return int(self.offsets[0].as_py())

    @property
    def last(self) -> int:
        return int(self.offsets[-1].as_py())

    def position(self, offset: int) -> int:
        """Return the position of the first row with at least this offset, or the number of rows."""
        return bisect_left(integers(self.offsets), offset)

    def slice(self, start: int, end: int) -> "Block":
        if start == 0 and end == len(self):
            return self
        offsets, timestamps, types, contents = (column.slice(start, end - start) for column in self[:4])
        return Block(offsets, timestamps, types, contents, self.size)


def integers(array: pa.Int64Array) -> memoryview:
    """Return the numbers of an array that has no nulls, without a copy."""
    if len(array) == 0:
        return memoryview(b"").cast("q")
    numbers = memoryview(array.buffers()[1]).cast("B").cast("q")
    return numbers[array.offset : array.offset + len(array)]


def make_block(rows: pa.Table | pa.RecordBatch) -> Block:
    """Return the block of rows with COLUMNS, whose offsets ascend."""
    key, value, headers = (_one_array(rows.column(name)) for name in COLUMNS[3:])
    key, value = key.cast(BINARY), value.cast(BINARY)
    contents = join(
        encode_lengths(pc.binary_length(key)),
        _without_nulls(key),
        encode_lengths(pc.binary_length(value)),
        _without_nulls(value),
        *_encode_headers(headers),
    )
    arrays = (
        _one_array(rows.column("offset")).cast(pa.int64()),
        pc.divide(_one_array(rows.column("timestamp")).cast(pa.int64()), 1000),
        _one_array(rows.column("timestampType")).cast(pa.int32()),
        contents,
    )
    return Block(*arrays, sum(array.nbytes for array in arrays))


def merge_blocks(blocks: list[Block]) -> Block:
    """Return the rows of all blocks in the order of their offsets; an offset that several blocks have appears once."""
    if len(blocks) == 1:
        return blocks[0]
    columns = [pa.concat_arrays([block[column] for block in blocks]) for column in range(4)]
    order = pc.sort_indices(columns[0])
    offsets, timestamps, types, contents = (column.take(order) for column in columns)
    if len(offsets) > 1:
        is_new = pa.concat_arrays([pa.array([True]), pc.not_equal(offsets[1:], offsets[:-1])])
        offsets, timestamps, types, contents = (
            column.filter(is_new) for column in (offsets, timestamps, types, contents)
        )
    return Block(offsets, timestamps, types, contents, sum(block.size for block in blocks))


def _encode_headers(headers: pa.Array) -> tuple[pa.LargeBinaryArray, ...]:
    """Return the number of each row's headers, and the headers. A null list counts as empty."""
    counts = encode_lengths(pc.list_value_length(headers).cast(pa.int64()).fill_null(0))
    if headers.null_count == len(headers):
        return (counts,)
    items = headers.flatten()
    if len(items) == 0:
        return (counts,)
    key, value = items.field("key").cast(BINARY), items.field("value").cast(BINARY)
    encoded = join(
        encode_lengths(pc.binary_length(key).fill_null(0)),
        _without_nulls(key),
        encode_lengths(pc.binary_length(value)),
        _without_nulls(value),
    )
    lengths = pc.list_value_length(headers).cast(pa.int64()).fill_null(0)
    ends = pc.cumulative_sum(lengths).cast(pa.int32())
    starts = pa.concat_arrays([pa.array([0], pa.int32()), ends])
    return counts, pc.binary_join(pa.ListArray.from_arrays(starts, encoded), EMPTY)


def _without_nulls(array: pa.LargeBinaryArray) -> pa.LargeBinaryArray:
    return array.fill_null(b"") if array.null_count else array


def _one_array(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
