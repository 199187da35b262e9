"""A poll can read records that were acknowledged before it began."""

import pytest

from tests.unit.simulation.checker.history_builder import FAILED, UNKNOWN, HistoryBuilder, P, Q


def asked_after(**more) -> HistoryBuilder:
    builder = HistoryBuilder()
    builder.assign(0)
    builder.send(10, at=0, **more)
    builder.poll(to=0)
    return builder


def test_an_acknowledged_record_is_not_returned():
    [found] = asked_after().anomalies()
    assert (found.kind, found.text) == (
        "stale poll",
        "consumer received no records from offset 0 of t-0 on, although offset 0 had been acknowledged before the "
        "poll began.",
    )


def test_a_record_without_acknowledgement_may_be_missing():
    assert asked_after(outcome=UNKNOWN).kinds() == []
    assert asked_after(acks=0).kinds() == []


def test_a_record_that_is_acknowledged_during_the_poll():
    builder = HistoryBuilder()
    builder.assign(0)
    poll = builder.polling()
    builder.send(10, at=0)
    builder.polled(poll, to=0)
    assert builder.kinds() == []


def test_a_poll_at_the_end():
    builder = HistoryBuilder()
    builder.assign(0)
    builder.send(10, at=0)
    builder.poll((0, 10))
    builder.poll(to=1)
    assert builder.kinds() == []


def test_a_poll_that_failed_or_returned_another_partition():
    builder = HistoryBuilder()
    builder.assign({P: 0, Q: 0})
    builder.send(10, at=0)
    builder.send(20, at=0, tp=Q)
    builder.poll(to=0, outcome=FAILED)
    poll = builder.polling()
    poll.action.positions[P] = 0
    builder.polled(poll, (0, 20), tp=Q)
    assert builder.kinds() == []


@pytest.mark.parametrize("happens", [lambda builder: builder.loss(0), lambda builder: builder.delete_records(1)])
def test_the_record_may_be_lost_or_deleted(happens):
    builder = HistoryBuilder()
    builder.assign(0)
    builder.send(10, at=0)
    happens(builder)
    builder.poll(to=0)
    assert builder.kinds() == []


def test_a_record_that_is_acknowledged_after_the_loss():
    builder = HistoryBuilder()
    builder.assign(0)
    builder.send(10, 11, 12, at=0)
    builder.loss(0)
    builder.send(13, at=0, by="another")
    builder.poll(to=0)
    assert builder.kinds() == ["stale poll"]


@pytest.mark.parametrize(("committed_only", "kinds"), [(True, []), (False, ["stale poll"])])
def test_open_transactions_hold_back(committed_only, kinds):
    builder = HistoryBuilder()
    builder.assign(0)
    builder.send(9, at=0, by="transactional", transaction=1)
    builder.send(10, at=1)
    builder.poll(to=0, committed_only=committed_only)
    assert builder.kinds() == kinds


@pytest.mark.parametrize("moves", [False, True])
def test_a_poll_that_passed_a_transaction_marker(moves):
    """It was given something, though no record: that was all that fitted."""
    builder = HistoryBuilder()
    builder.assign({P: 0, Q: 0})
    builder.send(10, at=0, transaction=0)
    builder.end(0, commit=True)
    builder.poll((0, 10))
    builder.send(20, at=0, tp=Q)
    poll = builder.polling()
    poll.action.positions[Q] = 0
    builder.polled(poll, to=2 if moves else 1)
    assert builder.kinds() == ([] if moves else ["stale poll"])
