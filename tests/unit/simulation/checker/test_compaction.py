"""Compaction removes a record only if a later one has its key."""

import pytest

from kbroker.simulation.checker import check
from tests.unit.simulation.checker.history_builder import HistoryBuilder, kinds

# The values 1 and 3 have one key, 2 and 4 the other one.
COMPACTED = {"t": 2}


@pytest.mark.parametrize(
    ("final", "expected"),
    [
        ((1, 2, 3, 4), []),
        ((None, 2, 3, 4), []),
        ((None, None, 3, 4), []),
        ((1, 2, None, 4), ["lost write", "skipped records"]),
        ((None, None, None, 4), ["lost write", "skipped records"]),
    ],
)
def test_the_last_record_of_each_key_stays(final: tuple[int | None, ...], expected: list[str]) -> None:
    builder = HistoryBuilder()
    for offset, value in enumerate((1, 2, 3, 4)):
        builder.send(value, at=offset)
    builder.ends_with(*final)
    assert kinds(check(builder.history, durable=False, compacted=COMPACTED)) == expected


def test_compaction_may_take_a_part_of_a_batch() -> None:
    builder = HistoryBuilder()
    builder.send(1, 2, at=0)
    builder.send(3, at=2)
    builder.ends_with(None, 2, 3)
    assert kinds(check(builder.history, durable=False, compacted=COMPACTED)) == []
    assert "torn batch" in kinds(check(builder.history, durable=False))


def test_an_emptied_batch_is_read_without_a_record() -> None:
    builder = HistoryBuilder()
    for offset, value in enumerate((1, 3, 5)):
        builder.send(value, at=offset)
    builder.assign(0)
    builder.poll(to=2)
    assert kinds(check(builder.history, durable=False, compacted=COMPACTED)) == []
