"""What one consumer is given, poll after poll."""

import pytest

from tests.unit.simulation.checker.story import FAILED, UNKNOWN, P, Q, Story


def written(*values: int) -> Story:
    story = Story()
    for offset, value in enumerate(values):
        story.send(value, at=offset)
    story.assign(0)
    return story


def test_one_after_the_other():
    story = written(10, 11, 12, 13)
    story.poll((0, 10), (1, 11))
    story.poll((2, 12))
    story.poll((3, 13))
    story.poll(to=4)
    assert story.kinds() == []


def test_skipped_in_one_poll():
    story = written(10, 11, 12)
    story.poll((0, 10), (2, 12))
    assert story.kinds() == ["skipped records"]


def test_skipped_between_polls():
    story = written(10, 11, 12)
    story.poll((0, 10))
    story.poll((2, 12))
    [found] = story.anomalies()
    assert found.kind == "skipped records"
    assert found.text == "consumer went from offset 1 of t-0 to 2; between lie 11 at 1."


def test_skipped_at_the_beginning():
    story = written(10, 11)
    story.poll((1, 11))
    assert story.kinds() == ["skipped records"]


def test_skipped_by_the_position_alone():
    story = written(10, 11)
    story.poll((0, 10), to=2)
    assert story.kinds() == ["skipped records"]


def test_skipped_and_acknowledged_only_later():
    story = Story()
    story.send(10, at=0)
    sending = story.sending(11, by="slow")
    story.send(12, at=2)
    story.assign(0)
    story.poll((0, 10), (2, 12))
    story.sent(sending, at=1)
    assert story.kinds() == ["skipped records"]


def test_skipped_by_one_and_read_by_another():
    story = written(10)
    story.send(11, outcome=UNKNOWN)
    story.send(12, at=2)
    story.poll((0, 10), (2, 12))
    assert story.kinds() == []
    story.assign(0, by="another")
    story.poll((0, 10), (1, 11), (2, 12), by="another")
    assert story.kinds() == ["skipped records"]


def test_offsets_without_records_are_no_skip():
    """Control batches, aborted transactions, what compaction has taken."""
    story = Story()
    story.send(10, at=0)
    story.send(12, at=5)
    story.assign(0)
    story.poll((0, 10), to=3)
    story.poll((5, 12))
    assert story.kinds() == []


def test_what_was_deleted_is_no_skip():
    for before, kinds in ((2, []), (1, ["skipped records"])):
        story = written(10, 11, 12)
        story.trim(before)
        story.poll((2, 12))
        assert story.kinds() == kinds


def test_what_is_deleted_later_is_a_skip():
    story = written(10, 11, 12)
    story.poll((2, 12))
    story.trim(2)
    assert story.kinds() == ["skipped records"]


def lost_and_read_on(floor: int) -> Story:
    story = written(10, 11, 12)
    story.poll((0, 10))
    story.loss(floor)
    story.send(20, at=2, by="another")
    story.poll((2, 20))
    return story


def test_what_may_be_lost_is_no_skip():
    assert lost_and_read_on(1).kinds() == []
    assert lost_and_read_on(2).kinds() == ["skipped records"]


def test_what_came_after_the_loss_is():
    story = written(10, 11)
    story.poll((0, 10))
    story.loss(1)
    story.send(20, at=1, by="another")
    story.send(21, at=2, by="another")
    story.poll((2, 21))
    assert story.kinds() == ["skipped records"]


@pytest.mark.parametrize("second", [[(1, 11)], [(0, 10), (1, 11)]])
def test_backward_between_polls(second):
    story = written(10, 11)
    story.poll((0, 10), (1, 11))
    story.poll(*second)
    assert story.kinds() == ["backward poll"]


def test_backward_in_one_poll():
    story = written(10, 11)
    story.poll((1, 11), (0, 10))
    assert story.kinds() == ["backward poll", "skipped records"]


def test_twice_in_one_poll():
    story = written(10)
    story.poll((0, 10), (0, 10))
    assert story.kinds() == ["backward poll"]


def test_backward_by_the_position_alone():
    story = written(10, 11)
    story.poll((0, 10), (1, 11))
    story.poll(to=1)
    assert story.kinds() == ["backward poll", "stale poll"]


def test_partitions_are_apart():
    story = written(10)
    story.send(20, at=0, place=Q)
    story.assign({P: 0, Q: 0})
    story.poll((0, 10))
    story.poll((0, 20), place=Q)
    story.poll(to=1)
    assert story.kinds() == []


@pytest.mark.parametrize("reason", ["assign", "seek", "rebalance"])
@pytest.mark.parametrize("position", [0, 2])
def test_an_assignment_begins_anew(reason, position):
    story = written(10, 11, 12)
    story.poll((0, 10))
    story.assign(position, reason=reason)
    story.poll((position, 10 + position))
    assert story.kinds() == []


def test_after_an_assignment_all_is_given_from_there_on():
    story = written(10, 11, 12)
    story.assign(1, reason="rebalance")
    story.poll((2, 12))
    assert story.kinds() == ["skipped records"]


def test_what_is_not_assigned_any_more_is_forgotten():
    story = written(10, 11, 12)
    story.poll((0, 10))
    story.assign({Q: 0}, reason="rebalance")
    story.assign(2, reason="rebalance")
    story.poll((2, 12))
    assert story.kinds() == []


def test_a_poll_without_an_outcome_leaves_nothing_to_follow_from():
    story = written(10, 11, 12)
    story.poll((0, 10), outcome=UNKNOWN)
    story.poll((2, 12))
    assert story.kinds() == []


def test_a_poll_that_failed_moves_nothing():
    story = written(10, 11, 12)
    story.poll((0, 10))
    story.poll(to=1, outcome=FAILED)
    story.poll((2, 12))
    assert story.kinds() == ["skipped records"]


def test_a_reset_after_a_poll_that_failed():
    story = written(10, 11, 12)
    story.poll((0, 10))
    story.poll(to=1, outcome=FAILED)
    story.assign(0, reason="reset")
    assert story.kinds() == ["unfounded reset"]


def reset(to: int, *, happens=lambda story: None) -> Story:
    story = written(10, 11, 12)
    story.poll((0, 10), (1, 11))
    happens(story)
    story.assign(to, reason="reset")
    return story


def test_a_reset_over_records():
    assert reset(3).kinds() == ["reset over records"]


def test_a_reset_over_what_was_deleted_or_lost():
    assert reset(3, happens=lambda story: story.trim(3)).kinds() == []
    assert reset(3, happens=lambda story: story.loss(2)).kinds() == []
    assert reset(3, happens=lambda story: story.loss(3)).kinds() == ["reset over records"]


def test_a_reset_backwards():
    assert reset(0).kinds() == ["unfounded reset"]
    assert reset(0, happens=lambda story: story.loss(1)).kinds() == []
    assert reset(0, happens=lambda story: story.loss(2)).kinds() == ["unfounded reset"]


def test_a_reset_backwards_after_a_deletion_that_a_crash_has_undone():
    assert reset(0, happens=lambda story: story.trim(3, UNKNOWN)).kinds() == []
    assert reset(0, happens=lambda story: story.trim(2, UNKNOWN)).kinds() == ["unfounded reset"]
    assert "unfounded reset" in reset(0, happens=lambda story: story.trim(3)).kinds()


def test_a_reset_from_where_the_program_has_put_it():
    story = written(10)
    story.assign(100, reason="seek")
    story.assign(0, reason="reset")
    story.poll((0, 10))
    assert story.kinds() == []


def test_a_reset_of_one_partition_leaves_the_others():
    story = written(10, 11)
    story.send(20, at=0, place=Q)
    story.assign({P: 0, Q: 9})
    story.poll((0, 10))
    story.assign({P: 1, Q: 0}, reason="reset")
    story.poll((0, 20), place=Q)
    assert story.kinds() == []
    story.poll((2, 12))
    assert "skipped records" in story.kinds()


@pytest.mark.parametrize(
    ("commit", "outcome", "committed_only", "skip"),
    [
        (True, "ok", True, True),
        (False, "ok", True, False),
        (True, "unknown", True, False),
        (False, "ok", False, True),
    ],
)
def test_who_reads_committed_records_may_skip_the_others(commit, outcome, committed_only, skip):
    story = Story()
    story.send(10, at=0)
    story.send(11, at=1, by="transactional", transaction=0)
    story.end(0, commit, outcome=type(UNKNOWN)(outcome))
    story.send(12, at=3)
    story.assign(0)
    story.poll((0, 10), (3, 12), committed_only=committed_only)
    assert story.kinds() == (["skipped records"] if skip else [])


def test_skipped_of_a_transaction_that_another_saw_committed():
    story = Story()
    story.send(11, at=0, by="transactional", transaction=0)
    story.end(0, True, outcome=UNKNOWN)
    story.send(12, at=2)
    for consumer in ("a", "b"):
        story.assign(0, by=consumer)
    story.poll((0, 11), (2, 12), by="a", committed_only=True)
    story.poll((2, 12), by="b", committed_only=True)
    assert story.kinds() == ["skipped records"]
