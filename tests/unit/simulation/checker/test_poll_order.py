"""Skipped records, backward polls and offset resets of one consumer."""

import pytest

from tests.unit.simulation.checker.history_builder import FAILED, UNKNOWN, HistoryBuilder, P, Q


def written(*values: int) -> HistoryBuilder:
    builder = HistoryBuilder()
    for offset, value in enumerate(values):
        builder.send(value, at=offset)
    builder.assign(0)
    return builder


def test_polls_in_order():
    builder = written(10, 11, 12, 13)
    builder.poll((0, 10), (1, 11))
    builder.poll((2, 12))
    builder.poll((3, 13))
    builder.poll(to=4)
    assert builder.kinds() == []


def test_skipped_in_one_poll():
    builder = written(10, 11, 12)
    builder.poll((0, 10), (2, 12))
    assert builder.kinds() == ["skipped records"]


def test_skipped_between_polls():
    builder = written(10, 11, 12)
    builder.poll((0, 10))
    builder.poll((2, 12))
    [found] = builder.anomalies()
    assert found.kind == "skipped records"
    assert found.text == "consumer moved from offset 1 of t-0 to 2 and skipped 11 at 1."


def test_skipped_at_the_beginning():
    builder = written(10, 11)
    builder.poll((1, 11))
    assert builder.kinds() == ["skipped records"]


def test_skipped_by_the_position_alone():
    builder = written(10, 11)
    builder.poll((0, 10), to=2)
    assert builder.kinds() == ["skipped records"]


def test_skipped_and_acknowledged_only_later():
    builder = HistoryBuilder()
    builder.send(10, at=0)
    sending = builder.sending(11, by="slow")
    builder.send(12, at=2)
    builder.assign(0)
    builder.poll((0, 10), (2, 12))
    builder.sent(sending, at=1)
    assert builder.kinds() == ["skipped records"]


def test_skipped_by_one_and_read_by_another():
    builder = written(10)
    builder.send(11, outcome=UNKNOWN)
    builder.send(12, at=2)
    builder.poll((0, 10), (2, 12))
    assert builder.kinds() == []
    builder.assign(0, by="another")
    builder.poll((0, 10), (1, 11), (2, 12), by="another")
    assert builder.kinds() == ["skipped records"]


def test_offsets_without_records_are_no_skip():
    """Control batches, aborted transactions, what compaction has taken."""
    builder = HistoryBuilder()
    builder.send(10, at=0)
    builder.send(12, at=5)
    builder.assign(0)
    builder.poll((0, 10), to=3)
    builder.poll((5, 12))
    assert builder.kinds() == []


def test_what_was_deleted_is_no_skip():
    for before, kinds in ((2, []), (1, ["skipped records"])):
        builder = written(10, 11, 12)
        builder.delete_records(before)
        builder.poll((2, 12))
        assert builder.kinds() == kinds


def test_what_is_deleted_later_is_a_skip():
    builder = written(10, 11, 12)
    builder.poll((2, 12))
    builder.delete_records(2)
    assert builder.kinds() == ["skipped records"]


def lost_and_read_on(floor: int) -> HistoryBuilder:
    builder = written(10, 11, 12)
    builder.poll((0, 10))
    builder.loss(floor)
    builder.send(20, at=2, by="another")
    builder.poll((2, 20))
    return builder


def test_what_may_be_lost_is_no_skip():
    assert lost_and_read_on(1).kinds() == []
    assert lost_and_read_on(2).kinds() == ["skipped records"]


def test_records_after_the_loss_must_not_be_skipped():
    builder = written(10, 11)
    builder.poll((0, 10))
    builder.loss(1)
    builder.send(20, at=1, by="another")
    builder.send(21, at=2, by="another")
    builder.poll((2, 21))
    assert builder.kinds() == ["skipped records"]


@pytest.mark.parametrize("second", [[(1, 11)], [(0, 10), (1, 11)]])
def test_backward_between_polls(second):
    builder = written(10, 11)
    builder.poll((0, 10), (1, 11))
    builder.poll(*second)
    assert builder.kinds() == ["backward poll"]


def test_backward_in_one_poll():
    builder = written(10, 11)
    builder.poll((1, 11), (0, 10))
    assert builder.kinds() == ["backward poll", "skipped records"]


def test_twice_in_one_poll():
    builder = written(10)
    builder.poll((0, 10), (0, 10))
    assert builder.kinds() == ["backward poll"]


def test_backward_by_the_position_alone():
    builder = written(10, 11)
    builder.poll((0, 10), (1, 11))
    builder.poll(to=1)
    assert builder.kinds() == ["backward poll", "stale poll"]


def test_partitions_are_independent():
    builder = written(10)
    builder.send(20, at=0, tp=Q)
    builder.assign({P: 0, Q: 0})
    builder.poll((0, 10))
    builder.poll((0, 20), tp=Q)
    builder.poll(to=1)
    assert builder.kinds() == []


@pytest.mark.parametrize("reason", ["assign", "seek", "rebalance"])
@pytest.mark.parametrize("position", [0, 2])
def test_an_assignment_sets_new_positions(reason, position):
    builder = written(10, 11, 12)
    builder.poll((0, 10))
    builder.assign(position, reason=reason)
    builder.poll((position, 10 + position))
    assert builder.kinds() == []


def test_after_an_assignment_all_is_given_from_there_on():
    builder = written(10, 11, 12)
    builder.assign(1, reason="rebalance")
    builder.poll((2, 12))
    assert builder.kinds() == ["skipped records"]


def test_what_is_not_assigned_any_more_is_forgotten():
    builder = written(10, 11, 12)
    builder.poll((0, 10))
    builder.assign({Q: 0}, reason="rebalance")
    builder.assign(2, reason="rebalance")
    builder.poll((2, 12))
    assert builder.kinds() == []


def test_a_poll_without_an_outcome_leaves_nothing_to_follow_from():
    builder = written(10, 11, 12)
    builder.poll((0, 10), outcome=UNKNOWN)
    builder.poll((2, 12))
    assert builder.kinds() == []


def test_a_poll_that_failed_moves_nothing():
    builder = written(10, 11, 12)
    builder.poll((0, 10))
    builder.poll(to=1, outcome=FAILED)
    builder.poll((2, 12))
    assert builder.kinds() == ["skipped records"]


def test_a_reset_after_a_poll_that_failed():
    builder = written(10, 11, 12)
    builder.poll((0, 10))
    builder.poll(to=1, outcome=FAILED)
    builder.assign(0, reason="reset")
    assert builder.kinds() == ["unfounded reset"]


def reset(to: int, *, happens=lambda builder: None) -> HistoryBuilder:
    builder = written(10, 11, 12)
    builder.poll((0, 10), (1, 11))
    happens(builder)
    builder.assign(to, reason="reset")
    return builder


def test_a_reset_over_records():
    assert reset(3).kinds() == ["reset over records"]


def test_a_reset_over_what_was_deleted_or_lost():
    assert reset(3, happens=lambda builder: builder.delete_records(3)).kinds() == []
    assert reset(3, happens=lambda builder: builder.loss(2)).kinds() == []
    assert reset(3, happens=lambda builder: builder.loss(3)).kinds() == ["reset over records"]


def test_a_reset_backwards():
    assert reset(0).kinds() == ["unfounded reset"]
    assert reset(0, happens=lambda builder: builder.loss(1)).kinds() == []
    assert reset(0, happens=lambda builder: builder.loss(2)).kinds() == ["unfounded reset"]


def test_a_reset_backwards_after_a_deletion_that_a_crash_has_undone():
    assert reset(0, happens=lambda builder: builder.delete_records(3, UNKNOWN)).kinds() == []
    assert reset(0, happens=lambda builder: builder.delete_records(2, UNKNOWN)).kinds() == ["unfounded reset"]
    assert "unfounded reset" in reset(0, happens=lambda builder: builder.delete_records(3)).kinds()


def test_a_reset_from_where_the_program_has_put_it():
    builder = written(10)
    builder.assign(100, reason="seek")
    builder.assign(0, reason="reset")
    builder.poll((0, 10))
    assert builder.kinds() == []


def test_a_reset_of_one_partition_leaves_the_others():
    builder = written(10, 11)
    builder.send(20, at=0, tp=Q)
    builder.assign({P: 0, Q: 9})
    builder.poll((0, 10))
    builder.assign({P: 1, Q: 0}, reason="reset")
    builder.poll((0, 20), tp=Q)
    assert builder.kinds() == []
    builder.poll((2, 12))
    assert "skipped records" in builder.kinds()


@pytest.mark.parametrize(
    ("commit", "outcome", "committed_only", "skip"),
    [
        (True, "ok", True, True),
        (False, "ok", True, False),
        (True, "unknown", True, False),
        (False, "ok", False, True),
    ],
)
def test_read_committed_may_skip_uncommitted_records(commit, outcome, committed_only, skip):
    builder = HistoryBuilder()
    builder.send(10, at=0)
    builder.send(11, at=1, by="transactional", transaction=0)
    builder.end(0, commit, outcome=type(UNKNOWN)(outcome))
    builder.send(12, at=3)
    builder.assign(0)
    builder.poll((0, 10), (3, 12), committed_only=committed_only)
    assert builder.kinds() == (["skipped records"] if skip else [])


def test_skipped_of_a_transaction_that_another_saw_committed():
    builder = HistoryBuilder()
    builder.send(11, at=0, by="transactional", transaction=0)
    builder.end(0, True, outcome=UNKNOWN)
    builder.send(12, at=2)
    for consumer in ("a", "b"):
        builder.assign(0, by=consumer)
    builder.poll((0, 11), (2, 12), by="a", committed_only=True)
    builder.poll((2, 12), by="b", committed_only=True)
    assert builder.kinds() == ["skipped records"]
