"""Deleted records are not returned again."""

from tests.unit.simulation.checker.history_builder import UNKNOWN, HistoryBuilder


def deleted(**outcome) -> HistoryBuilder:
    builder = HistoryBuilder()
    builder.send(1, at=0)
    builder.send(2, at=1)
    builder.send(3, at=2)
    builder.assign(0)
    builder.delete_records(2, **outcome)
    return builder


def test_a_deleted_record_is_returned():
    builder = deleted()
    builder.poll((0, 1), (1, 2), (2, 3))
    builder.ends_with(3, start=2)
    assert builder.kinds() == ["deleted record"]


def test_remaining_records_are_returned():
    builder = deleted()
    builder.assign(2, reason="reset")
    builder.poll((2, 3))
    builder.ends_with(3, start=2)
    assert builder.kinds() == []


def test_a_later_deletion_of_less_takes_nothing_back():
    builder = deleted()
    builder.delete_records(1)
    builder.poll((1, 2), (2, 3))
    builder.ends_with(3, start=2)
    assert "deleted record" in builder.kinds()


def test_a_deletion_without_a_response_may_have_no_effect():
    builder = deleted(outcome=UNKNOWN)
    builder.poll((0, 1), (1, 2), (2, 3))
    builder.ends_with(1, 2, 3)
    assert builder.kinds() == []


def test_a_poll_that_began_before_the_deletion():
    builder = HistoryBuilder()
    builder.send(1, at=0)
    builder.send(2, at=1)
    builder.assign(0)
    poll = builder.polling()
    builder.delete_records(1)
    builder.polled(poll, (0, 1), (1, 2))
    builder.ends_with(2, start=1)
    assert builder.kinds() == []


def test_offsets_that_are_reused_after_a_loss():
    builder = deleted()
    builder.loss(0)
    builder.send(4, at=0)
    builder.assign(0)
    builder.poll((0, 4))
    builder.ends_with(4)
    assert "deleted record" not in builder.kinds()
