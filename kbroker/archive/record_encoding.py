"""Encodes rows of a table as the records of Kafka's batches (format v2), many at a time, with Arrow's functions.

    length | attributes 1 | timestamp delta | offset delta | key length, key | value length, value |
    header count | (header key length, header key | header value length, header value) ...

All but the attributes are zigzag varints. protocol/records/record.py encodes a single record, and is much slower.
"""

from functools import cache
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from protocol.records.record import encode_varint

_SMALL = 1 << 13
_BYTES = pa.large_binary()
_EMPTY = pa.scalar(b"", _BYTES)


def encode_records(rows: pa.Table, base_offsets: pa.Array, base_timestamps: pa.Array) -> pa.LargeBinaryArray:
    """Return each row as a record, with its length.

    `rows` has the columns offset, timestamp, key, value and headers in one chunk each; the bases are those of the batch
    of each row, timestamps in milliseconds.
    """
    column = {name: _array(rows.column(name)) for name in ("offset", "timestamp", "key", "value", "headers")}
    timestamps = pc.divide(column["timestamp"].cast(pa.int64()), 1000)
    negative = pc.less(pc.subtract(column["timestamp"].cast(pa.int64()), pc.multiply(timestamps, 1000)), 0)
    timestamps = pc.subtract(timestamps, negative.cast(pa.int64()))
    parts = [
        pa.scalar(b"\0", _BYTES),
        _varints(pc.subtract(timestamps, base_timestamps)),
        _varints(pc.subtract(column["offset"], base_offsets)),
        *_with_length(column["key"]),
        *_with_length(column["value"]),
        *_encode_headers(column["headers"]),
    ]
    lengths: Any = pa.scalar(0, pa.int64())
    for part in parts:
        lengths = pc.add(lengths, pc.binary_length(part).cast(pa.int64()))
    return pc.binary_join_element_wise(_varints(lengths), *parts, _EMPTY)


def repeat(values: list[int], counts: list[int]) -> pa.Array:
    """Return an array with `counts[i]` times `values[i]`."""
    ends, end = [], 0
    for count in counts:
        end += count
        ends.append(end)
    kept = [(value, end) for value, end, count in zip(values, ends, counts, strict=True) if count]
    run_ends = pa.array([end for _, end in kept], pa.int32())
    return pc.run_end_decode(pa.RunEndEncodedArray.from_arrays(run_ends, pa.array([v for v, _ in kept], pa.int64())))


def _array(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _with_length(values: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Return the lengths as varints, -1 for null, and the values without nulls."""
    values = values.cast(_BYTES)
    lengths = pc.fill_null(pc.binary_length(values).cast(pa.int64()), -1)
    return _varints(lengths), pc.fill_null(values, _EMPTY) if values.null_count else values


def _encode_headers(headers: pa.Array) -> tuple[pa.Array, ...]:
    """Return the number of headers as varints, and all headers of each record."""
    counts = pc.fill_null(pc.list_value_length(headers).cast(pa.int64()), 0)
    flat = headers.flatten()
    if not len(flat):
        return (_varints(counts),)
    keys, values = (_with_length(part) for part in flat.flatten())
    encoded = pc.binary_join_element_wise(*keys, *values, _EMPTY)
    # The offsets of `headers` itself may begin in the middle, and those of nulls may span items.
    offsets = pa.concat_arrays([pa.array([0], pa.int64()), pc.cumulative_sum(counts)])
    return _varints(counts), pc.binary_join(pa.LargeListArray.from_arrays(offsets, encoded), _EMPTY)


def _varints(values: pa.Array) -> pa.Array:
    """Encode numbers of at most 64 bits as zigzag varints."""
    bounds = pc.min_max(values).as_py()
    if bounds["min"] is None or (bounds["min"] >= -_SMALL and bounds["max"] < _SMALL):
        return pc.take(_small_varints(), pc.add(values, _SMALL))
    found = values.dictionary_encode()
    encoded = pa.array(map(encode_varint, found.dictionary.to_pylist()), _BYTES)
    return pc.take(encoded, found.indices)


@cache
def _small_varints() -> pa.Array:
    return pa.array(map(encode_varint, range(-_SMALL, _SMALL)), _BYTES)
