"""One value at one offset; batches whole and in order; nothing that nobody sent."""

import pytest

from tests.unit.simulation.checker.story import FAILED, UNKNOWN, P, Q, Story


def test_an_offset_with_two_values():
    story = Story()
    story.send(1, at=0)
    story.send(2, at=1)
    story.assign(0)
    story.poll((0, 1), (1, 9))
    assert story.kinds() == ["unsent value", "inconsistent offsets"]


def test_acknowledged_at_an_offset_of_another():
    story = Story()
    story.send(1, at=0, by="a")
    story.send(2, at=0, by="b")
    assert story.kinds() == ["inconsistent offsets"]


def test_acknowledged_at_another_offset_than_it_has():
    story = Story()
    story.send(1, at=5)
    story.assign(0)
    story.poll((3, 1))
    assert story.kinds() == ["inconsistent offsets"]


def given_anew(floor: int, *, seen_between: bool = False) -> Story:
    """The value 2 at offset 1, a loss, the value 3 at offset 1."""
    story = Story()
    story.send(1, at=0)
    story.send(2, at=1)
    story.loss(floor)
    if seen_between:
        story.assign(0, by="early")
        story.poll((0, 1), (1, 2), by="early")
    story.send(3, at=1, by="another")
    story.assign(0)
    story.poll((0, 1), (1, 3))
    return story


def test_a_loss_gives_offsets_anew():
    assert given_anew(1).kinds() == []
    assert given_anew(0).kinds() == []
    assert given_anew(2).kinds() == ["inconsistent offsets"]


def test_the_old_value_was_seen_after_the_loss():
    assert given_anew(1, seen_between=True).kinds() == ["inconsistent offsets"]


def test_the_old_value_comes_back():
    story = given_anew(1)
    story.loss(1)
    story.assign(0)
    story.poll((0, 1), (1, 2))
    assert story.kinds() == ["inconsistent offsets"]


def test_a_lost_batch_is_written_again_by_its_retry():
    """At the same offset, with another one in between that was lost too."""
    story = Story()
    retried = story.sending(1, by="patient")
    story.assign(0)
    story.poll((0, 1))
    story.loss(0)
    story.send(2, at=0, by="another")
    story.loss(0)
    story.sent(retried, at=0)
    story.ends_with(1)
    assert story.kinds() == []


def test_during_a_loss_a_poll_may_give_either():
    for value in (1, 2):
        story = Story()
        story.send(1, at=0, by="a")
        poll = story.polling()
        story.loss(0)
        story.send(2, at=0, by="b")
        story.polled(poll, (0, value))
        assert story.kinds() == []


def test_two_losses_and_three_values():
    """Who is seen only by polls that lasted over losses must still have had a time of its own."""
    for losses, kinds in ((2, []), (1, ["inconsistent offsets"])):
        story = Story()
        for value in (1, 2, 3):
            story.send(value, outcome=UNKNOWN, by=f"p{value}")
        polls = [story.polling(by=f"c{value}") for value in (1, 2, 3)]
        for _ in range(losses):
            story.loss(0)
        for value, poll in enumerate(polls, 1):
            story.polled(poll, (0, value))
        assert story.kinds() == kinds


def test_a_duplicate():
    story = Story()
    story.send(1, outcome=UNKNOWN)
    story.ends_with(1, 1)
    assert story.kinds() == ["duplicate"]


def test_a_duplicate_in_different_polls():
    story = Story()
    story.send(1, outcome=UNKNOWN)
    story.send(2, at=1)
    story.assign(0)
    story.poll((0, 1), (1, 2))
    story.poll((2, 1))
    assert story.kinds() == ["duplicate"]


def test_a_retry_doubles_what_is_not_idempotent():
    story = Story()
    story.send(1, 2, at=2, idempotent=False)
    story.ends_with(1, 2, 1, 2)
    assert story.kinds() == []


def moved_by_a_loss(floor: int, *, acknowledged_before: bool = False) -> Story:
    """At offset 1, and after a loss at offset 2."""
    story = Story()
    story.send(1, at=0, by="a")
    sending = story.sending(2)
    story.assign(0)
    story.poll((0, 1), (1, 2))
    if acknowledged_before:
        story.sent(sending, at=1)
    story.loss(floor)
    story.send(3, at=1, by="a")
    if not acknowledged_before:
        story.sent(sending, at=2)
    story.ends_with(1, 3, 2)
    return story


def test_what_was_lost_is_written_again_elsewhere():
    assert moved_by_a_loss(1).kinds() == []


def test_what_was_not_lost_is_not_written_again():
    texts = [one.text for one in moved_by_a_loss(2).anomalies()]
    assert texts == [
        "t-0 has had the values 2, 3 at offset 1, and no power loss explains it.",
        "The value 2 of t-0 was acknowledged at offset 2 and is at 1.",
    ]


def test_nobody_tried_any_more_when_it_was_lost():
    assert moved_by_a_loss(1, acknowledged_before=True).kinds() == ["inconsistent offsets"]


def test_values_that_nobody_sent():
    story = Story()
    story.assign(0)
    story.poll((0, 7))
    assert story.kinds() == ["unsent value"]


def test_values_that_were_refused():
    story = Story()
    story.send(7, outcome=FAILED)
    story.assign(0)
    story.poll((0, 7))
    assert story.kinds() == ["unsent value"]


def test_values_of_another_partition():
    story = Story()
    story.send(7, at=0, place=P)
    story.assign({Q: 0})
    story.poll((0, 7), place=Q)
    assert story.kinds() == ["unsent value"]


def test_values_without_an_answer_may_be_read():
    story = Story()
    story.send(7, outcome=UNKNOWN)
    story.sending(8)
    story.assign(0)
    story.poll((0, 7), (1, 8))
    assert story.kinds() == []


@pytest.mark.parametrize(
    ("there", "torn"),
    [((1, 2, 3), False), ((None, None, None), False), ((1, None, 3), True), ((1, 2, None), True), ((2, 1, 3), True)],
)
def test_a_batch_is_whole(there, torn):
    story = Story()
    story.send(1, 2, 3, outcome=UNKNOWN)
    story.send(4, at=3)
    story.ends_with(*there, 4)
    assert story.kinds() == (["torn batch"] if torn else [])


def test_another_record_within_a_batch():
    story = Story()
    story.send(1, 2, outcome=UNKNOWN)
    story.send(3, at=1, by="another")
    story.ends_with(1, 3, 2)
    assert story.kinds() == ["torn batch"]


def test_deletion_cuts_a_batch():
    story = Story()
    story.send(1, 2, outcome=UNKNOWN)
    story.trim(1)
    story.ends_with(2, start=1)
    assert story.kinds() == []


def test_a_loss_does_not_cut_a_batch():
    story = Story()
    story.send(1, 2, outcome=UNKNOWN)
    story.loss(1)
    story.send(3, at=1, by="another")
    story.ends_with(1, 3)
    assert story.kinds() == ["torn batch"]


def test_backward_sends():
    story = Story()
    story.send(1, at=1)
    story.send(2, at=0)
    assert story.kinds() == ["backward sends"]


def test_backward_sends_within_a_batch():
    story = Story()
    story.send(1, 2, at=0)
    story.send(3, at=1)
    assert story.kinds() == ["inconsistent offsets", "backward sends"]


def test_forward_sends():
    story = Story()
    story.send(1, at=0, by="a")
    story.send(2, at=3, by="a")
    story.send(3, at=2, by="b")
    story.send(4, at=0, by="a", place=Q)
    # Another producer of the same process: its order begins anew.
    story.send(5, at=1, by="a", order=0)
    assert story.kinds() == []


def test_sends_go_back_for_a_loss_only():
    for floor, kinds in ((1, []), (2, ["backward sends"])):
        story = Story()
        story.send(1, at=1)
        story.loss(floor)
        story.send(2, at=0)
        assert story.kinds() == kinds


def test_without_idempotence_retries_come_out_of_order():
    story = Story()
    story.send(1, at=1, idempotent=False)
    story.send(2, at=0, idempotent=False)
    assert story.kinds() == []
