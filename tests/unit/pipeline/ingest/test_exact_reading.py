"""Records with timestamps that Spark does not hold."""

import pyarrow as pa
import pytest

from kbroker.client.consumer import ConsumedRecord
from kbroker.pipeline.ingest.exact_reading import MAX_MS, MIN_MS, is_inexact, make_rows

YEAR_1582_MS = -12_219_292_800_000


def record(timestamp: int) -> ConsumedRecord:
    return ConsumedRecord("t", 1, 5, timestamp, 0, b"k", None, (("h", None), ("h", b"x")))


@pytest.mark.parametrize(
    ("timestamp", "expected"), [(0, False), (YEAR_1582_MS, False), (YEAR_1582_MS - 1, True), (MAX_MS, False)]
)
def test_timestamps_before_the_gregorian_calendar_are_not_exact(timestamp: int, expected: bool) -> None:
    assert is_inexact(make_rows([record(0), record(timestamp)])) is expected


def test_timestamps_after_the_year_9999_are_not_exact() -> None:
    rows = make_rows([record(0)])
    late = pa.array([(MAX_MS + 1) * 1000], pa.timestamp("us", "UTC"))
    index = rows.schema.get_field_index("timestamp")
    assert is_inexact(rows.set_column(index, "timestamp", late))
    assert not is_inexact(make_rows([]))


def test_rows_have_the_columns_of_a_table_and_timestamps_that_it_can_hold() -> None:
    rows = make_rows([record(MIN_MS - 1), record(2**63 - 1), record(-1)])
    assert rows.column("timestamp").cast(pa.int64()).to_pylist() == [MIN_MS * 1000, MAX_MS * 1000, -1000]
    assert rows.column("headers")[0].as_py() == [{"key": "h", "value": None}, {"key": "h", "value": b"x"}]
    assert rows.column("value")[0].as_py() is None
