"""What was acknowledged before a poll began can be read by it."""

import pytest

from tests.unit.simulation.checker.story import FAILED, UNKNOWN, P, Q, Story


def asked_after(**more) -> Story:
    story = Story()
    story.assign(0)
    story.send(10, at=0, **more)
    story.poll(to=0)
    return story


def test_an_acknowledged_record_is_not_there_yet():
    [found] = asked_after().anomalies()
    assert (found.kind, found.text) == (
        "stale poll",
        "consumer was told that there is nothing at offset 0 of t-0 or behind it; offset 0 had been acknowledged "
        "before it asked.",
    )


def test_a_record_without_acknowledgement_may_not_be_there_yet():
    assert asked_after(outcome=UNKNOWN).kinds() == []
    assert asked_after(acks=0).kinds() == []


def test_acknowledged_while_it_asked():
    story = Story()
    story.assign(0)
    poll = story.polling()
    story.send(10, at=0)
    story.polled(poll, to=0)
    assert story.kinds() == []


def test_at_the_end_there_is_nothing():
    story = Story()
    story.assign(0)
    story.send(10, at=0)
    story.poll((0, 10))
    story.poll(to=1)
    assert story.kinds() == []


def test_a_poll_that_failed_or_gave_something_else():
    story = Story()
    story.assign({P: 0, Q: 0})
    story.send(10, at=0)
    story.send(20, at=0, place=Q)
    story.poll(to=0, outcome=FAILED)
    poll = story.polling()
    poll.action.positions[P] = 0
    story.polled(poll, (0, 20), place=Q)
    assert story.kinds() == []


@pytest.mark.parametrize("happens", [lambda story: story.loss(0), lambda story: story.trim(1)])
def test_it_may_be_gone(happens):
    story = Story()
    story.assign(0)
    story.send(10, at=0)
    happens(story)
    story.poll(to=0)
    assert story.kinds() == []


def test_what_is_acknowledged_after_the_loss():
    story = Story()
    story.assign(0)
    story.send(10, 11, 12, at=0)
    story.loss(0)
    story.send(13, at=0, by="another")
    story.poll(to=0)
    assert story.kinds() == ["stale poll"]


@pytest.mark.parametrize(("committed_only", "kinds"), [(True, []), (False, ["stale poll"])])
def test_open_transactions_hold_back(committed_only, kinds):
    story = Story()
    story.assign(0)
    story.send(9, at=0, by="transactional", transaction=1)
    story.send(10, at=1)
    story.poll(to=0, committed_only=committed_only)
    assert story.kinds() == kinds


@pytest.mark.parametrize("moves", [False, True])
def test_a_poll_that_came_past_the_mark_of_a_transaction(moves):
    """It was given something, though no record: that was all that fitted."""
    story = Story()
    story.assign({P: 0, Q: 0})
    story.send(10, at=0, transaction=0)
    story.end(0, commit=True)
    story.poll((0, 10))
    story.send(20, at=0, place=Q)
    poll = story.polling()
    poll.action.positions[Q] = 0
    story.polled(poll, to=2 if moves else 1)
    assert story.kinds() == ([] if moves else ["stale poll"])
