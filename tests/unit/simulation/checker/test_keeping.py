"""What was promised is kept: lost, unseen and unreadable writes, losses under flush.before.ack."""

from kbroker.simulation.checker import render
from kbroker.simulation.checker.history import Corrupt
from tests.unit.simulation.checker.story import OK, UNKNOWN, P, Q, Story


def test_all_that_was_sent_is_there():
    story = Story()
    story.send(1, 2, at=0)
    story.send(3, at=2)
    story.ends_with(1, 2, 3)
    assert story.kinds() == []


def test_an_acknowledged_write_is_lost():
    story = Story()
    story.send(1, at=0)
    story.send(2, at=1)
    story.send(3, at=2)
    story.ends_with(1, None, 3)
    # The final reader also went past a record that others know of.
    assert story.kinds() == ["lost write", "skipped records"]


def test_without_final_reads_nothing_is_known_to_be_lost():
    story = Story()
    story.send(1, at=0)
    assert story.kinds() == []


def test_a_write_without_an_answer_may_be_missing():
    story = Story()
    story.send(1, at=0)
    story.send(2, outcome=UNKNOWN)
    story.sending(3)
    story.ends_with(1)
    assert story.kinds() == []


def test_a_write_without_an_answer_must_stay_once_it_was_read():
    story = Story()
    story.send(1, at=0)
    story.send(2, outcome=UNKNOWN)
    story.send(3, at=2)
    story.assign(0)
    story.poll((0, 1), (1, 2), (2, 3))
    story.ends_with(1, None, 3)
    assert story.kinds() == ["lost write", "skipped records"]


def test_acks_0_promises_nothing():
    story = Story()
    story.send(1, acks=0)
    story.send(2, at=0)
    story.ends_with(2)
    assert story.kinds() == []


def lost_with_the_power(floor: int | None, *, place=P) -> Story:
    story = Story()
    story.send(1, at=0)
    story.send(2, at=1)
    story.send(3, at=2)
    story.loss(floor, place)
    story.send(4, at=1, by="another")
    return story


def test_a_loss_takes_what_lies_above_its_floor():
    story = lost_with_the_power(1)
    story.ends_with(1, 4)
    assert story.kinds() == []


def test_a_loss_takes_nothing_below_its_floor():
    story = lost_with_the_power(2)
    story.ends_with(1, 4)
    assert story.kinds() == ["lost write", "inconsistent offsets"]


def test_a_loss_takes_nothing_of_a_partition_that_it_does_not_name():
    story = lost_with_the_power(1, place=Q)
    story.ends_with(1, 4)
    assert story.kinds() == ["lost write", "unreadable at the end", "inconsistent offsets"]


def test_a_loss_takes_a_suffix_and_not_the_middle():
    story = Story()
    story.send(1, at=0)
    story.send(2, at=1)
    story.send(3, at=2)
    story.loss(1)
    story.ends_with(1, None, 3)
    assert story.kinds() == ["lost write"]


def test_a_loss_takes_nothing_that_is_acknowledged_after_it():
    story = Story()
    story.loss(0)
    story.send(1, at=0)
    story.send(2, at=1)
    story.ends_with(None, 2)
    assert "lost write" in story.kinds()


def acknowledged_over_a_loss(*, attempted_after: bool) -> Story:
    story = Story()
    sending = story.sending(1)
    story.loss(0)
    if attempted_after:
        sending.action.attempted = story.history.step
    story.sent(sending, at=0)
    story.send(2, at=1, by="another")
    story.ends_with(None, 2)
    return story


def test_an_answer_that_may_have_been_on_its_way_before_the_loss():
    assert acknowledged_over_a_loss(attempted_after=False).kinds() == []


def test_the_answer_to_a_retry_after_the_loss():
    """As a broker gives that knows the producer's sequence and not its records any more."""
    assert acknowledged_over_a_loss(attempted_after=True).kinds() == ["lost write", "skipped records"]


def test_what_was_read_after_a_loss_must_stay():
    story = Story()
    story.send(1, at=0)
    story.send(2, at=1)
    story.loss(1)
    story.assign(0)
    story.poll((0, 1), (1, 2))
    story.send(3, at=2)
    story.ends_with(1, None, 3)
    assert "lost write" in story.kinds()


def test_what_was_read_before_a_loss_may_go():
    story = Story()
    story.send(1, at=0)
    story.send(2, outcome=UNKNOWN)
    story.assign(0)
    story.poll((0, 1), (1, 2))
    story.loss(1)
    story.ends_with(1)
    assert story.kinds() == []


def deleted(before: int) -> Story:
    story = Story()
    story.send(1, 2, at=0)
    story.send(3, at=2)
    story.trim(before)
    story.ends_with(3, start=2)
    return story


def test_deleted_records_may_be_gone():
    assert deleted(2).kinds() == []
    assert deleted(-1).kinds() == []


def test_a_deletion_takes_nothing_else():
    assert deleted(1).kinds() == ["lost write"]


def test_a_deletion_is_not_of_what_is_sent_after_it():
    story = Story()
    story.send(1, at=0)
    story.trim(1)
    story.loss(0)
    story.send(2, at=0)
    story.send(3, at=1)
    story.ends_with(3, start=1)
    assert story.kinds() == ["lost write"]


def test_acknowledged_as_a_duplicate_without_an_offset():
    for there in (True, False):
        story = Story()
        story.send(1, at=None)
        story.send(2, at=1)
        story.ends_with(1 if there else None, 2)
        assert story.kinds() == ([] if there else ["unseen at the end"])


def test_without_an_offset_any_loss_may_have_taken_it():
    story = Story()
    story.send(1, at=None)
    story.loss(0)
    story.send(2, at=1)
    story.ends_with(None, 2)
    assert story.kinds() == []


def test_the_last_reads_stop_short():
    story = Story()
    story.send(1, at=0)
    story.send(2, at=1)
    story.ends_with(1)
    assert story.kinds() == ["unreadable at the end"]


def test_nobody_can_read_a_partition_at_the_end():
    story = Story()
    story.send(1, at=0)
    story.send(2, at=0, place=Q)
    story.ends_with(1)
    assert story.kinds() == ["unreadable at the end"]


def test_the_end_was_lost():
    story = Story()
    story.send(1, at=0)
    story.send(2, at=1)
    story.loss(1)
    story.ends_with(1)
    assert story.kinds() == []


def test_all_was_deleted():
    story = Story()
    story.send(1, at=0)
    story.send(2, at=1)
    story.trim(2)
    story.ends_with(start=2)
    assert story.kinds() == []


def test_corrupt_bytes_are_not_given_out():
    story = Story()
    story.do("consumer", Corrupt(P, 3, "wrong CRC"))
    [found] = story.anomalies()
    assert (found.kind, found.text) == (
        "corrupt read",
        "consumer was given at offset 3 of t-0 what nobody sent: wrong CRC.",
    )
    assert "CORRUPT t-0@3: wrong CRC" in render(story.history, [found])


def test_flush_before_ack():
    story = Story()
    story.send(1, at=0)
    unanswered = story.sending(2)
    story.loss(1)
    story.sent(unanswered, outcome=UNKNOWN)
    story.ends_with(1)
    assert story.kinds(durable=True) == []


def test_flush_before_ack_and_the_loss_took_an_acknowledged_record():
    story = Story()
    story.send(1, at=0)
    story.send(2, at=1)
    story.loss(1)
    story.loss(1)
    story.ends_with(1)
    assert story.kinds() == []
    found = story.anomalies(durable=True)
    assert [one.kind for one in found] == ["unflushed acknowledgement"]
    assert [one.number for one in found[0].operations] == [1, 2]


def test_flush_before_ack_and_an_answer_during_the_loss():
    story = Story()
    sending = story.sending(1)
    story.loss(0)
    story.sent(sending, at=0)
    story.ends_with(1)
    assert story.kinds(durable=True) == []


def test_flush_before_ack_and_somebody_read_what_was_not_durable():
    for outcome, at in ((OK, 1), (UNKNOWN, None)):
        story = Story()
        story.send(1, at=0)
        sending = story.sending(2)
        story.assign(0)
        story.poll((0, 1), (1, 2))
        story.loss(1)
        story.sent(sending, at=at, outcome=outcome)
        story.ends_with(1)
        assert story.kinds(durable=True) == ["unflushed read"]
        assert story.kinds() == []


def test_flush_before_ack_and_what_was_deleted():
    story = Story()
    story.send(1, at=0)
    story.assign(0)
    story.poll((0, 1))
    story.trim(1)
    story.loss(0)
    story.ends_with(start=1)
    assert story.kinds(durable=True) == []
