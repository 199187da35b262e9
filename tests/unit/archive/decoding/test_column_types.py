"""How decoded columns may change."""

import pyarrow as pa
import pytest

from kbroker.archive.decoding.column_types import TIMESTAMPTZ, widen
from kbroker.archive.decoding.errors import DecodeError


@pytest.mark.parametrize(
    ("current", "new", "result"),
    [
        (pa.int32(), pa.int64(), pa.int64()),
        (pa.int64(), pa.int32(), pa.int64()),
        (pa.float32(), pa.float64(), pa.float64()),
        (pa.decimal128(5, 2), pa.decimal128(9, 2), pa.decimal128(9, 2)),
        (pa.list_(pa.int32()), pa.list_(pa.int64()), pa.list_(pa.int64())),
        (pa.map_(pa.string(), pa.float32()), pa.map_(pa.string(), pa.float64()), pa.map_(pa.string(), pa.float64())),
        (
            pa.struct([("a", pa.int32()), ("b", pa.string())]),
            pa.struct([("c", pa.bool_()), ("a", pa.int64())]),
            pa.struct([("a", pa.int64()), ("b", pa.string()), ("c", pa.bool_())]),
        ),
    ],
)
def test_wider(current: pa.DataType, new: pa.DataType, result: pa.DataType) -> None:
    """Fields are added at the end; the order of the new schema does not matter."""
    assert widen(current, new) == result


@pytest.mark.parametrize(
    ("current", "new", "reason"),
    [
        (pa.string(), pa.int32(), "the column is string, and the schema has int"),
        (pa.int64(), pa.float64(), "the column is long, and the schema has double"),
        (
            pa.decimal128(5, 2),
            pa.decimal128(9, 3),
            r"the column is decimal\(5, 2\), and the schema has decimal\(9, 3\)",
        ),
        (pa.binary(3), pa.binary(4), r"the column is fixed\(3\), and the schema has fixed\(4\)"),
        (TIMESTAMPTZ, pa.list_(pa.bool_()), "the column is timestamptz, and the schema has list"),
        (
            pa.struct([("a", pa.list_(pa.struct([("b", pa.date32())])))]),
            pa.struct([("a", pa.list_(pa.struct([("b", pa.map_(pa.string(), pa.string()))])))]),
            r"^a.\[\].b: the column is date, and the schema has map$",
        ),
    ],
)
def test_not_wider(current: pa.DataType, new: pa.DataType, reason: str) -> None:
    """The reason names the field."""
    with pytest.raises(DecodeError, match=reason):
        widen(current, new)
