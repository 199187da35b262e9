"""What was deleted is not given out any more."""

from tests.unit.simulation.checker.story import UNKNOWN, Story


def deleted(**outcome) -> Story:
    story = Story()
    story.send(1, at=0)
    story.send(2, at=1)
    story.send(3, at=2)
    story.assign(0)
    story.trim(2, **outcome)
    return story


def test_what_was_deleted_is_back():
    story = deleted()
    story.poll((0, 1), (1, 2), (2, 3))
    story.ends_with(3, start=2)
    assert story.kinds() == ["deleted record"]


def test_what_remains_is_given():
    story = deleted()
    story.assign(2, reason="reset")
    story.poll((2, 3))
    story.ends_with(3, start=2)
    assert story.kinds() == []


def test_a_later_deletion_of_less_takes_nothing_back():
    story = deleted()
    story.trim(1)
    story.poll((1, 2), (2, 3))
    story.ends_with(3, start=2)
    assert "deleted record" in story.kinds()


def test_a_deletion_without_an_answer_may_not_have_been():
    story = deleted(outcome=UNKNOWN)
    story.poll((0, 1), (1, 2), (2, 3))
    story.ends_with(1, 2, 3)
    assert story.kinds() == []


def test_a_poll_that_had_begun_before_may_give_it():
    story = Story()
    story.send(1, at=0)
    story.send(2, at=1)
    story.assign(0)
    poll = story.polling()
    story.trim(1)
    story.polled(poll, (0, 1), (1, 2))
    story.ends_with(2, start=1)
    assert story.kinds() == []


def test_offsets_that_a_loss_gave_back_are_others():
    story = deleted()
    story.loss(0)
    story.send(4, at=0)
    story.assign(0)
    story.poll((0, 4))
    story.ends_with(4)
    assert "deleted record" not in story.kinds()
