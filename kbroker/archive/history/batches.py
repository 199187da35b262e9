"""Builds record batches from rows (pure): with their offsets, timestamps and leader epochs, without producers.

A batch has one leader epoch and one type of timestamp. If the type is LogAppendTime, all its records have its max
timestamp, so rows with another one begin another batch.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from kbroker.archive.history.blocks import Block, integers
from kbroker.archive.history.varints import BINARY, encode_varints, join
from kbroker.archive.topic_state import LeaderEpoch
from protocol.records.batch import LOG_APPEND_TIME, NO_LEADER_EPOCH, assemble_batch

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
    offsets = integers(rows.offsets)
    batches: list[bytearray] = []
    count, size, next_offset = 0, 0, offsets[0]
    for start, end in _cut(rows, offsets, epochs, min(max_bytes, BATCH_BYTES)):
        next_row = offsets[end] if end < len(offsets) else following
        batch, batch_end = _encode_batch(rows.slice(start, end), epochs, next_row)
        if batches and size + len(batch) > max_bytes:
            break
        batches.append(batch)
        count, size, next_offset = end, size + len(batch), batch_end
    return EncodedRows(batches, count, size, next_offset)


def _encode_batch(rows: Block, epochs: Sequence[LeaderEpoch], next_row: int) -> tuple[bytearray, int]:
    """Return a batch of all rows, and the offset after it, which is at most `next_row`."""
    base_offset, last = rows.first, rows.last
    epoch, epoch_end = epoch_at(epochs, base_offset)
    # A last offset in the next epoch would look to consumers like a truncated log.
    end = max(last + 1, min(next_row, base_offset + _MAX_DELTA, next_row if epoch_end is None else epoch_end))
    base_timestamp, max_timestamp = rows.timestamps[0].as_py(), pc.max(rows.timestamps).as_py()
    records = join(
        _NO_ATTRIBUTES,
        encode_varints(pc.subtract(rows.timestamps, base_timestamp)),
        encode_varints(pc.subtract(rows.offsets, base_offset)),
        rows.contents,
    )
    body = join(encode_varints(pc.binary_length(records)), records)
    starts = memoryview(body.buffers()[1]).cast("B").cast("q")
    content = memoryview(body.buffers()[2])[starts[body.offset] : starts[body.offset + len(body)]]
    batch = assemble_batch(
        content,
        count=len(rows),
        last_offset_delta=end - 1 - base_offset,
        base_timestamp=base_timestamp,
        max_timestamp=max_timestamp,
        attributes=LOG_APPEND_TIME if rows.types[0].as_py() == 1 else 0,
        base_offset=base_offset,
        leader_epoch=epoch,
    )
    return batch, end


def _cut(
    rows: Block, offsets: Sequence[int], epochs: Sequence[LeaderEpoch], batch_bytes: int
) -> Iterator[tuple[int, int]]:
    """Yield the first and the last row + 1 of each batch."""
    borders = _type_borders(rows)
    borders += [position for epoch in epochs if 0 < (position := _position(offsets, epoch.start)) < len(rows)]
    ends = _content_ends(rows)
    start = 0
    for border in [*sorted({*borders} - {0}), len(rows)]:
        while start < border:
            end = start + 1
            low, high = end, border
            # The largest end whose rows fit, by bisection, because each row adds its content and the overhead.
            while low <= high:
                middle = (low + high) // 2
                size = ends[middle] - ends[start] + RECORD_OVERHEAD * (middle - start)
                if size <= batch_bytes and offsets[middle - 1] - offsets[start] < _MAX_DELTA:
                    end, low = middle, middle + 1
                else:
                    high = middle - 1
            yield start, end
            start = end


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


def _position(offsets: Sequence[int], offset: int) -> int:
    """Return the first row with at least this offset."""
    return bisect_right(offsets, offset - 1)


def _content_ends(rows: Block) -> Sequence[int]:
    """Return where the contents of each row begin in the buffer of all, and the end of the last one."""
    numbers = memoryview(rows.contents.buffers()[1]).cast("B").cast("q")
    return numbers[rows.contents.offset : rows.contents.offset + len(rows) + 1]
