"""Each input record of a consume-transform-produce group has exactly one result."""

import pytest

from tests.unit.simulation.checker.history_builder import OK, UNKNOWN, HistoryBuilder, P, Q

ONE, TWO = ((P, 0),), ((P, 1),)


def read_two() -> HistoryBuilder:
    """The records 1 and 2 are in P, and are made into 10 and 20 in Q by the transactions 0 and 1."""
    builder = HistoryBuilder()
    builder.send(1, 2, at=0, by="source")
    return builder


def transform(
    builder: HistoryBuilder,
    transaction: int,
    value: int,
    at: int,
    of: tuple,
    *,
    commit: bool = True,
    outcome=OK,
    offset=None,
) -> None:
    builder.send(value, at=at, by=f"t{transaction}", tp=Q, transaction=transaction, group="g", sources=of)
    if offset is not None:
        builder.commit(offset, "m", 1, transaction=transaction)
    builder.end(transaction, commit, outcome=outcome)


def ended(builder: HistoryBuilder, *results: int | None, committed: int) -> list[str]:
    builder.ends_with(1, 2, committed_only=True)
    builder.ends_with(*results, tp=Q, committed_only=True)
    builder.committed(committed)
    return builder.kinds()


def both(*, outcome=OK) -> HistoryBuilder:
    builder = read_two()
    transform(builder, 0, 10, 0, ONE, offset=1)
    transform(builder, 1, 20, 2, TWO, offset=2, outcome=outcome)
    return builder


def test_each_record_has_its_result():
    assert ended(both(), 10, None, 20, None, committed=2) == []


@pytest.mark.parametrize(
    ("results", "committed", "kinds"),
    [
        ((10, None, 20, None), 2, []),
        ((10, None, None, None), 1, []),
        ((10, None, None, None), 2, ["offset without its result"]),
        ((10, None, 20, None), 1, ["result without its offset"]),
    ],
)
def test_of_an_end_that_is_unknown_both_or_nothing_is_there(results, committed, kinds):
    assert ended(both(outcome=UNKNOWN), *results, committed=committed) == kinds


def test_a_transaction_that_was_aborted_is_done_again():
    builder = read_two()
    transform(builder, 0, 10, 0, ONE, offset=1)
    transform(builder, 1, 20, 2, TWO, offset=2, commit=False)
    transform(builder, 2, 21, 4, TWO, offset=2)
    assert ended(builder, 10, None, None, None, 21, None, committed=2) == []


def test_a_record_that_is_transformed_twice():
    builder = both()
    transform(builder, 2, 21, 4, TWO, offset=2)
    assert ended(builder, 10, None, 20, None, 21, None, committed=2) == ["transformed twice"]


def test_offsets_that_an_aborted_transaction_has_committed():
    builder = read_two()
    transform(builder, 0, 10, 0, ONE, offset=1)
    transform(builder, 1, 20, 2, TWO, offset=2, commit=False)
    assert ended(builder, 10, None, None, None, committed=2) == ["unknown commit", "offset without its result"]


def test_several_values_have_each_their_own():
    builder = read_two()
    builder.send(10, 20, at=0, by="t", tp=Q, transaction=0, group="g", sources=(*ONE, *TWO))
    builder.commit(2, "m", 1, transaction=0)
    builder.end(0, commit=True)
    assert ended(builder, 10, 20, None, committed=2) == []


def test_what_a_loss_may_have_taken_is_not_judged_unless_all_is_durable():
    for durable, kinds in ((False, []), (True, ["offset without its result"])):
        builder = read_two()
        transform(builder, 0, 10, 0, ONE, offset=1, outcome=UNKNOWN)
        builder.commit(1, "m", 1)
        builder.loss(100, commits=1)
        builder.ends_with(1, 2, committed_only=True)
        builder.ends_with(None, None, tp=Q, committed_only=True)
        builder.committed(1)
        assert builder.kinds(durable=durable) == kinds


def test_without_a_final_offset_fetch_only_duplicates_are_found():
    builder = both()
    builder.ends_with(1, 2, committed_only=True)
    builder.ends_with(10, None, None, None, tp=Q, committed_only=True)
    assert "offset without its result" not in builder.kinds()


def test_read_committed_reaches_the_end():
    builder = HistoryBuilder()
    builder.send(1, at=0, transaction=0)
    builder.end(0, commit=True)
    builder.send(2, at=2, by="other")
    builder.ends_with(1, None, 2)
    builder.ends_with(1, None, committed_only=True)
    assert builder.kinds() == ["unreadable at the end"]
