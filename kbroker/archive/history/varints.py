"""Varints of whole Arrow arrays (pure)."""

import pyarrow as pa
import pyarrow.compute as pc

BINARY = pa.large_binary()
EMPTY = pa.scalar(b"", BINARY)
_BITS = 14  # of a number that the tables encode: two bytes of a varint
_LIMIT = 1 << _BITS
# The varint of each number that is not negative; and those that are followed by another byte, always with two bytes.
_LAST = pa.array([bytes([n]) if n < 0x80 else bytes([n & 0x7F | 0x80, n >> 7]) for n in range(_LIMIT)], BINARY)
_CONTINUED = pa.array([bytes([n & 0x7F | 0x80, n >> 7 | 0x80]) for n in range(_LIMIT)], BINARY)


def encode_varints(numbers: pa.Int64Array) -> pa.LargeBinaryArray:
    """Return the zigzag varint of each number, which is not null, and whose absolute value is below 2**62."""
    return _encode_unsigned(pc.bit_wise_xor(pc.shift_left(numbers, 1), pc.shift_right(numbers, 62)))


def encode_lengths(lengths: pa.Int64Array) -> pa.LargeBinaryArray:
    """Return the zigzag varint of each length; a null stands for a null value."""
    if lengths.null_count == 0:
        return _encode_unsigned(pc.shift_left(lengths, 1))
    return _encode_unsigned(pc.shift_left(lengths, 1).fill_null(1))


def _encode_unsigned(numbers: pa.Int64Array) -> pa.LargeBinaryArray:
    if len(numbers) == 0:
        return pa.array([], BINARY)
    largest = pc.max(numbers).as_py()
    if largest < _LIMIT:
        return _LAST.take(numbers)
    is_large = pc.greater_equal(numbers, _LIMIT)
    low = pc.bit_wise_and(numbers, _LIMIT - 1)
    high = _encode_unsigned(pc.shift_right(numbers, _BITS))
    large = join(_CONTINUED.take(low), high)
    return pc.if_else(is_large, large, _LAST.take(low))


def join(*columns: pa.LargeBinaryArray | pa.LargeBinaryScalar) -> pa.LargeBinaryArray:
    """Return the bytes of each row of all columns, one after the other. There must be no nulls."""
    return pc.binary_join_element_wise(*columns, EMPTY)
