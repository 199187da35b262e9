"""The committed offset of a group is a register."""

import pytest

from kbroker.simulation.checker.history import Committed
from tests.unit.simulation.checker.story import FAILED, OK, UNKNOWN, P, Story


def reading(offset: int) -> Committed:
    return Committed("g", {P: offset})


def test_the_last_commit_is_read():
    story = Story()
    story.committed(-1)
    story.commit(5)
    story.commit(8)
    story.committed(8)
    story.commit(3)
    story.committed(3)
    assert story.kinds() == []


@pytest.mark.parametrize(("read", "kind"), [(5, "lost commit"), (-1, "lost commit"), (7, "unknown commit")])
def test_something_else_is_read(read, kind):
    story = Story()
    story.commit(5)
    story.commit(8)
    story.committed(read)
    assert story.kinds() == [kind]


def test_a_refused_commit_has_no_effect():
    story = Story()
    story.commit(5)
    story.commit(8, outcome=FAILED)
    story.committed(5)
    assert story.kinds() == []
    story.committed(8)
    assert story.kinds() == ["unknown commit"]


@pytest.mark.parametrize("read", [5, 8])
def test_a_commit_without_an_answer_may_have_an_effect(read):
    story = Story()
    story.commit(5)
    story.commit(8, outcome=UNKNOWN)
    story.committed(read)
    assert story.kinds() == []


def test_and_may_have_it_late():
    story = Story()
    story.commit(8, outcome=UNKNOWN)
    story.commit(5)
    story.committed(5)
    story.committed(8)
    assert story.kinds() == []


def test_what_was_read_is_not_undone():
    story = Story()
    story.commit(5)
    story.commit(8, outcome=UNKNOWN)
    story.committed(8)
    story.committed(5)
    assert story.kinds() == ["lost commit"]


def test_the_same_offset_again_is_no_undoing():
    story = Story()
    story.commit(5)
    story.commit(8, outcome=UNKNOWN)
    story.committed(8)
    story.commit(5)
    story.committed(5)
    assert story.kinds() == []


@pytest.mark.parametrize("read", [5, 8])
def test_concurrent_commits(read):
    story = Story()
    first = story.committing(5, "a")
    second = story.committing(8, "b")
    story.done(first)
    story.done(second)
    story.committed(read)
    assert story.kinds() == []


def test_a_commit_that_begins_during_the_read():
    story = Story()
    story.commit(5)
    read = story.history.begin("asker", reading(5))
    story.commit(8)
    story.done(read)
    assert story.kinds() == []


def test_a_read_without_an_answer_says_nothing():
    story = Story()
    story.commit(5)
    story.done(story.history.begin("asker", reading(3)), UNKNOWN)
    assert story.kinds() == []


def committed_and_lost(*, durable: int | None) -> Story:
    """5, 8 and 9 are committed; what was durable when the power was lost."""
    story = Story()
    story.commit(5)
    story.commit(8)
    story.commit(9)
    story.loss(commits=durable)
    return story


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
    story = committed_and_lost(durable=durable)
    story.committed(read)
    assert story.kinds() == kinds


def test_after_a_loss_things_go_on():
    story = committed_and_lost(durable=5)
    story.committed(5)
    story.commit(6)
    story.committed(6)
    assert story.kinds() == []
    story.committed(9)
    assert story.kinds() == ["lost commit"]


def test_what_was_read_after_a_loss_is_not_undone():
    story = committed_and_lost(durable=5)
    story.committed(9)
    story.committed(8)
    assert story.kinds() == ["lost commit"]


def test_an_answer_over_a_loss_may_come_from_before_it():
    story = Story()
    story.commit(5)
    committing = story.committing(8)
    story.loss(commits=5)
    story.done(committing)
    story.committed(5)
    assert story.kinds() == []


def test_a_read_over_a_loss():
    for value, kinds in ((9, []), (5, []), (-1, ["lost commit"])):
        story = Story()
        story.commit(5)
        story.commit(9)
        read = story.history.begin("asker", reading(value))
        story.loss(commits=5)
        story.done(read)
        assert story.kinds() == kinds


def test_two_losses():
    """What was durable at the first is durable at the second."""
    story = Story()
    for offset in (5, 6, 5, 7):
        story.commit(offset)
    story.loss(commits=7)
    story.commit(8)
    story.loss(commits=7)
    story.committed(6)
    assert story.kinds() == ["lost commit"]


def test_rot_takes_a_commit_that_was_durable():
    """What the second Loss leaves is older than what was durable at the first. Later it is committed once more."""
    story = Story()
    for offset in (5, 6, 7):
        story.commit(offset)
    story.loss(commits=6)
    story.commit(8)
    story.loss(commits=5)
    story.committed(5)
    story.commit(5)
    assert story.kinds() == []


def test_under_flush_before_ack_a_loss_takes_no_acknowledged_commit():
    for durable, kinds in ((8, ["unflushed acknowledgement"]), (9, [])):
        assert committed_and_lost(durable=durable).kinds(durable=True) == kinds
        assert committed_and_lost(durable=durable).kinds() == []


def test_under_flush_before_ack_what_had_no_answer_may_be_durable_or_not():
    for durable in (5, 8):
        story = Story()
        story.commit(5)
        story.commit(8, outcome=UNKNOWN)
        story.loss(commits=durable)
        story.committed(durable)
        assert story.kinds(durable=True) == []


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
    story = Story()
    story.commit(5)
    story.commit(8, transaction=1)
    if commit is not None:
        story.end(1, commit, outcome=outcome)
    story.committed(read)
    assert story.kinds() == kinds


def test_a_transaction_takes_no_effect_before_its_end():
    story = Story()
    story.commit(8, transaction=1)
    story.committed(8)
    story.end(1, commit=True)
    assert story.kinds() == ["unknown commit"]


def test_many_commits_of_one_offset():
    """An idle member commits the same again and again."""
    story = Story()
    for _ in range(5_000):
        story.commit(5)
        story.committed(5)
    assert story.kinds() == []
