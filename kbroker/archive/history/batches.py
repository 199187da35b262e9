"""Builds record batches from rows (pure): with their offsets, timestamps and leader epochs, without producers.

A batch has one leader epoch and one type of timestamp. If the type is LogAppendTime, all its records have its max
timestamp, so rows with another one begin another batch.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from functools import partial
from itertools import accumulate
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from kbroker.archive.history.blocks import Block, integers
from kbroker.archive.history.varints import BINARY, encode_lengths, encode_varints, join
from kbroker.archive.topic_state import LeaderEpoch
from protocol.records.batch import HEADER_SIZE, LOG_APPEND_TIME, NO_LEADER_EPOCH, assemble_batch

BATCH_BYTES = 256 << 10
# An upper bound of what a record has besides its content: length, attributes, deltas.
RECORD_OVERHEAD = 22
_MAX_DELTA = 0x7FFFFFFF
_NO_ATTRIBUTES = pa.scalar(b"\0", BINARY)


class EncodedRows(NamedTuple):
    batches: list[bytearray]
    rows: int
    size: int  # of all batches in bytes
    next_offset: int


def epoch_at(epochs: Sequence[LeaderEpoch], offset: int) -> tuple[int, int | None]:
    """Return the leader epoch in which an offset was written, and where the next one begins."""
    index = bisect_right(epochs, offset, key=lambda item: item.start)
    end = epochs[index].start if index < len(epochs) else None
    return (epochs[index - 1].epoch if index else NO_LEADER_EPOCH), end


def encode_rows(rows: Block, epochs: Sequence[LeaderEpoch], following: int, max_bytes: int) -> EncodedRows:
    """Return batches of the first rows, of at most `max_bytes` but at least one batch, which may have one record.

    No record has an offset between the last row and `following`, so the last offset of a batch is that before the next
    record: otherwise consumers would ask again for offsets without a record.
    """
    cuts = _cut(rows, epochs, max_bytes)
    count = cuts[-1][1]
    offsets = integers(rows.offsets)
    next_offsets = [*(offsets[start] for start, _ in cuts[1:]), offsets[count] if count < len(rows) else following]
    rows = rows.slice(0, count)
    timestamps = integers(rows.timestamps)
    # Encoding each batch alone would take longer than the copying.
    firsts, counts = [start for start, _ in cuts], [end - start for start, end in cuts]
    bases = (repeat([column[first] for first in firsts], counts) for column in (offsets, timestamps))
    records = encode_records(rows, *bases)
    starts = memoryview(records.buffers()[1]).cast("B").cast("q")[records.offset :]
    content = memoryview(records.buffers()[2])
    batches = []
    end_offset = 0
    for (start, end), next_offset in zip(cuts, next_offsets, strict=True):
        base_offset = offsets[start]
        epoch, epoch_end = epoch_at(epochs, base_offset)
        # A last offset in the next epoch would look to consumers like a truncated log.
        limit = min(next_offset, base_offset + _MAX_DELTA, next_offset if epoch_end is None else epoch_end)
        end_offset = max(offsets[end - 1] + 1, limit)
        batches.append(
            assemble_batch(
                content[starts[start] : starts[end]],
                count=end - start,
                last_offset_delta=end_offset - 1 - base_offset,
                base_timestamp=timestamps[start],
                max_timestamp=pc.max(rows.timestamps.slice(start, end - start)).as_py(),
                attributes=LOG_APPEND_TIME if rows.types[start].as_py() == 1 else 0,
                base_offset=base_offset,
                leader_epoch=epoch,
            )
        )
    return EncodedRows(batches, count, sum(map(len, batches)), end_offset)


def encode_records(rows: Block, base_offsets: pa.Int64Array, base_timestamps: pa.Int64Array) -> pa.LargeBinaryArray:
    """Return each row as a record with its length. The bases are those of the batch of each row."""
    columns = ((rows.timestamps, base_timestamps), (rows.offsets, base_offsets))
    prefixes = join(_NO_ATTRIBUTES, *(encode_varints(pc.subtract(column, bases)) for column, bases in columns))
    sizes = pc.add(pc.binary_length(prefixes), pc.binary_length(rows.contents))
    return join(encode_lengths(sizes), prefixes, rows.contents)


def repeat(values: Sequence[int], counts: Sequence[int]) -> pa.Int64Array:
    """Return an array with `counts[i]` times `values[i]`."""
    kept = [(value, count) for value, count in zip(values, counts, strict=True) if count]
    ends = pa.array(accumulate(count for _, count in kept), pa.int32())
    return pc.run_end_decode(pa.RunEndEncodedArray.from_arrays(ends, pa.array([v for v, _ in kept], pa.int64())))


def _cut(rows: Block, epochs: Sequence[LeaderEpoch], max_bytes: int) -> list[tuple[int, int]]:
    """Return the first row, and the last one + 1, of each batch that fits into `max_bytes` with those before it."""
    offsets = integers(rows.offsets)
    borders = {bisect_left(offsets, epoch.start) for epoch in epochs} - {0, len(rows)}
    contents = rows.contents
    ends = memoryview(contents.buffers()[1]).cast("B").cast("q")[contents.offset :]

    def size(start: int, end: int) -> int:
        return int(ends[end] - ends[start]) + RECORD_OVERHEAD * (end - start) + HEADER_SIZE

    result: list[tuple[int, int]] = []
    start = 0
    for border in [*sorted(borders.union(_type_borders(rows))), len(rows)]:
        while start < border:
            room = min(max_bytes, BATCH_BYTES)
            # The largest end whose rows fit, at least one.
            end = bisect_right(range(border + 1), room, lo=start + 2, key=partial(size, start)) - 1
            end = min(end, bisect_left(offsets, offsets[start] + _MAX_DELTA, hi=end))
            max_bytes -= size(start, end)
            if result and max_bytes < 0:
                return result
            result.append((start, end))
            start = end
    return result


def _type_borders(rows: Block) -> list[int]:
    """Return the rows that cannot be in one batch with the row before, because of their type or append time."""
    if len(rows) < 2 or pc.max(rows.types).as_py() < 1:
        return []
    types, timestamps = rows.types, rows.timestamps
    is_border = pc.or_(
        pc.not_equal(types[1:], types[:-1]),
        pc.and_(pc.equal(types[1:], 1), pc.not_equal(timestamps[1:], timestamps[:-1])),
    )
    return [row + 1 for row in pc.indices_nonzero(is_border).to_pylist()]
