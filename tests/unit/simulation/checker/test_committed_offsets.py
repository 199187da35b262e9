"""Committed offsets behave as a register."""

import pytest

from kbroker.simulation.checker.history import OffsetFetch
from tests.unit.simulation.checker.history_builder import FAILED, OK, UNKNOWN, HistoryBuilder, P


def reading(offset: int) -> OffsetFetch:
    return OffsetFetch("g", {P: offset})


def test_the_last_commit_is_read():
    builder = HistoryBuilder()
    builder.committed(-1)
    builder.commit(5)
    builder.commit(8)
    builder.committed(8)
    builder.commit(3)
    builder.committed(3)
    assert builder.kinds() == []


@pytest.mark.parametrize(("read", "kind"), [(5, "lost commit"), (-1, "lost commit"), (7, "unknown commit")])
def test_an_overwritten_or_unknown_offset_is_read(read, kind):
    builder = HistoryBuilder()
    builder.commit(5)
    builder.commit(8)
    builder.committed(read)
    assert builder.kinds() == [kind]


def test_a_refused_commit_has_no_effect():
    builder = HistoryBuilder()
    builder.commit(5)
    builder.commit(8, outcome=FAILED)
    builder.committed(5)
    assert builder.kinds() == []
    builder.committed(8)
    assert builder.kinds() == ["unknown commit"]


@pytest.mark.parametrize("read", [5, 8])
def test_a_commit_without_an_answer_may_have_an_effect(read):
    builder = HistoryBuilder()
    builder.commit(5)
    builder.commit(8, outcome=UNKNOWN)
    builder.committed(read)
    assert builder.kinds() == []


def test_a_commit_without_an_answer_may_take_effect_late():
    builder = HistoryBuilder()
    builder.commit(8, outcome=UNKNOWN)
    builder.commit(5)
    builder.committed(5)
    builder.committed(8)
    assert builder.kinds() == []


def test_what_was_read_is_not_undone():
    builder = HistoryBuilder()
    builder.commit(5)
    builder.commit(8, outcome=UNKNOWN)
    builder.committed(8)
    builder.committed(5)
    assert builder.kinds() == ["lost commit"]


def test_the_same_offset_committed_again():
    builder = HistoryBuilder()
    builder.commit(5)
    builder.commit(8, outcome=UNKNOWN)
    builder.committed(8)
    builder.commit(5)
    builder.committed(5)
    assert builder.kinds() == []


@pytest.mark.parametrize("read", [5, 8])
def test_concurrent_commits(read):
    builder = HistoryBuilder()
    first = builder.committing(5, "a")
    second = builder.committing(8, "b")
    builder.done(first)
    builder.done(second)
    builder.committed(read)
    assert builder.kinds() == []


def test_a_commit_that_begins_during_the_read():
    builder = HistoryBuilder()
    builder.commit(5)
    read = builder.history.begin("asker", reading(5))
    builder.commit(8)
    builder.done(read)
    assert builder.kinds() == []


def test_a_read_without_an_answer_says_nothing():
    builder = HistoryBuilder()
    builder.commit(5)
    builder.done(builder.history.begin("asker", reading(3)), UNKNOWN)
    assert builder.kinds() == []


def committed_and_lost(*, durable: int | None) -> HistoryBuilder:
    """5, 8 and 9 are committed; what was durable when the power was lost."""
    builder = HistoryBuilder()
    builder.commit(5)
    builder.commit(8)
    builder.commit(9)
    builder.loss(commits=durable)
    return builder


@pytest.mark.parametrize(
    ("durable", "read", "kinds"),
    [
        (8, 9, []),
        (8, 8, []),
        (8, 5, ["lost commit"]),
        (8, -1, ["lost commit"]),
        (9, 8, ["lost commit"]),
        (-1, -1, []),
        (-1, 5, []),
        # A loss that does not name the group's partition takes nothing.
        (None, 8, ["lost commit"]),
    ],
)
def test_a_loss_takes_commits_that_are_newer_than_the_durable_one(durable, read, kinds):
    builder = committed_and_lost(durable=durable)
    builder.committed(read)
    assert builder.kinds() == kinds


def test_commits_after_a_loss():
    builder = committed_and_lost(durable=5)
    builder.committed(5)
    builder.commit(6)
    builder.committed(6)
    assert builder.kinds() == []
    builder.committed(9)
    assert builder.kinds() == ["lost commit"]


def test_what_was_read_after_a_loss_is_not_undone():
    builder = committed_and_lost(durable=5)
    builder.committed(9)
    builder.committed(8)
    assert builder.kinds() == ["lost commit"]


def test_an_answer_over_a_loss_may_come_from_before_it():
    builder = HistoryBuilder()
    builder.commit(5)
    committing = builder.committing(8)
    builder.loss(commits=5)
    builder.done(committing)
    builder.committed(5)
    assert builder.kinds() == []


def test_a_read_over_a_loss():
    for value, kinds in ((9, []), (5, []), (-1, ["lost commit"])):
        builder = HistoryBuilder()
        builder.commit(5)
        builder.commit(9)
        read = builder.history.begin("asker", reading(value))
        builder.loss(commits=5)
        builder.done(read)
        assert builder.kinds() == kinds


def test_two_losses():
    """What was durable at the first is durable at the second."""
    builder = HistoryBuilder()
    for offset in (5, 6, 5, 7):
        builder.commit(offset)
    builder.loss(commits=7)
    builder.commit(8)
    builder.loss(commits=7)
    builder.committed(6)
    assert builder.kinds() == ["lost commit"]


def test_rot_takes_a_commit_that_was_durable():
    """What the second Loss leaves is older than what was durable at the first. Later it is committed once more."""
    builder = HistoryBuilder()
    for offset in (5, 6, 7):
        builder.commit(offset)
    builder.loss(commits=6)
    builder.commit(8)
    builder.loss(commits=5)
    builder.committed(5)
    builder.commit(5)
    assert builder.kinds() == []


def test_under_flush_before_ack_a_loss_takes_no_acknowledged_commit():
    for durable, kinds in ((8, ["unflushed acknowledgement"]), (9, [])):
        assert committed_and_lost(durable=durable).kinds(durable=True) == kinds
        assert committed_and_lost(durable=durable).kinds() == []


def test_under_flush_before_ack_what_had_no_answer_may_be_durable_or_not():
    for durable in (5, 8):
        builder = HistoryBuilder()
        builder.commit(5)
        builder.commit(8, outcome=UNKNOWN)
        builder.loss(commits=durable)
        builder.committed(durable)
        assert builder.kinds(durable=True) == []


@pytest.mark.parametrize(
    ("commit", "outcome", "read", "kinds"),
    [
        (True, OK, 8, []),
        (True, OK, 5, ["lost commit"]),
        (False, OK, 5, []),
        (False, OK, 8, ["unknown commit"]),
        (True, UNKNOWN, 8, []),
        (True, UNKNOWN, 5, []),
        (None, OK, 5, []),
        (None, OK, 8, ["unknown commit"]),
    ],
)
def test_commits_of_a_transaction_take_effect_with_it(commit, outcome, read, kinds):
    builder = HistoryBuilder()
    builder.commit(5)
    builder.commit(8, transaction=1)
    if commit is not None:
        builder.end(1, commit, outcome=outcome)
    builder.committed(read)
    assert builder.kinds() == kinds


def test_a_transaction_takes_no_effect_before_its_end():
    builder = HistoryBuilder()
    builder.commit(8, transaction=1)
    builder.committed(8)
    builder.end(1, commit=True)
    assert builder.kinds() == ["unknown commit"]


def test_many_commits_of_one_offset():
    """An idle member commits the same again and again."""
    builder = HistoryBuilder()
    for _ in range(5_000):
        builder.commit(5)
        builder.committed(5)
    assert builder.kinds() == []
