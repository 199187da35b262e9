"""Inconsistent offsets, duplicates, unsent values, torn batches, backward sends."""

import pytest

from tests.unit.simulation.checker.history_builder import FAILED, UNKNOWN, HistoryBuilder, P, Q


def test_an_offset_with_two_values():
    builder = HistoryBuilder()
    builder.send(1, at=0)
    builder.send(2, at=1)
    builder.assign(0)
    builder.poll((0, 1), (1, 9))
    assert builder.kinds() == ["unsent value", "inconsistent offsets"]


def test_acknowledged_at_an_offset_of_another():
    builder = HistoryBuilder()
    builder.send(1, at=0, by="a")
    builder.send(2, at=0, by="b")
    assert builder.kinds() == ["inconsistent offsets"]


def test_acknowledged_at_another_offset_than_it_has():
    builder = HistoryBuilder()
    builder.send(1, at=5)
    builder.assign(0)
    builder.poll((3, 1))
    assert builder.kinds() == ["inconsistent offsets"]


def given_anew(floor: int, *, seen_between: bool = False) -> HistoryBuilder:
    """The value 2 at offset 1, a loss, the value 3 at offset 1."""
    builder = HistoryBuilder()
    builder.send(1, at=0)
    builder.send(2, at=1)
    builder.loss(floor)
    if seen_between:
        builder.assign(0, by="early")
        builder.poll((0, 1), (1, 2), by="early")
    builder.send(3, at=1, by="another")
    builder.assign(0)
    builder.poll((0, 1), (1, 3))
    return builder


def test_offsets_are_reused_after_a_loss():
    assert given_anew(1).kinds() == []
    assert given_anew(0).kinds() == []
    assert given_anew(2).kinds() == ["inconsistent offsets"]


def test_the_old_value_was_seen_after_the_loss():
    assert given_anew(1, seen_between=True).kinds() == ["inconsistent offsets"]


def test_the_old_value_comes_back():
    builder = given_anew(1)
    builder.loss(1)
    builder.assign(0)
    builder.poll((0, 1), (1, 2))
    assert builder.kinds() == ["inconsistent offsets"]


def test_a_lost_batch_is_written_again_by_its_retry():
    """At the same offset, with another one in between that was lost too."""
    builder = HistoryBuilder()
    retried = builder.sending(1, by="patient")
    builder.assign(0)
    builder.poll((0, 1))
    builder.loss(0)
    builder.send(2, at=0, by="another")
    builder.loss(0)
    builder.sent(retried, at=0)
    builder.ends_with(1)
    assert builder.kinds() == []


def test_a_poll_during_a_loss_may_return_either_value():
    for value in (1, 2):
        builder = HistoryBuilder()
        builder.send(1, at=0, by="a")
        poll = builder.polling()
        builder.loss(0)
        builder.send(2, at=0, by="b")
        builder.polled(poll, (0, value))
        assert builder.kinds() == []


def test_two_losses_and_three_values():
    """Who is seen only by polls that lasted over losses must still have had a time of its own."""
    for losses, kinds in ((2, []), (1, ["inconsistent offsets"])):
        builder = HistoryBuilder()
        for value in (1, 2, 3):
            builder.send(value, outcome=UNKNOWN, by=f"p{value}")
        polls = [builder.polling(by=f"c{value}") for value in (1, 2, 3)]
        for _ in range(losses):
            builder.loss(0)
        for value, poll in enumerate(polls, 1):
            builder.polled(poll, (0, value))
        assert builder.kinds() == kinds


def test_a_duplicate():
    builder = HistoryBuilder()
    builder.send(1, outcome=UNKNOWN)
    builder.ends_with(1, 1)
    assert builder.kinds() == ["duplicate"]


def test_a_duplicate_in_different_polls():
    builder = HistoryBuilder()
    builder.send(1, outcome=UNKNOWN)
    builder.send(2, at=1)
    builder.assign(0)
    builder.poll((0, 1), (1, 2))
    builder.poll((2, 1))
    assert builder.kinds() == ["duplicate"]


def test_a_retry_doubles_what_is_not_idempotent():
    builder = HistoryBuilder()
    builder.send(1, 2, at=2, idempotent=False)
    builder.ends_with(1, 2, 1, 2)
    assert builder.kinds() == []


def moved_by_a_loss(floor: int, *, acknowledged_before: bool = False) -> HistoryBuilder:
    """At offset 1, and after a loss at offset 2."""
    builder = HistoryBuilder()
    builder.send(1, at=0, by="a")
    sending = builder.sending(2)
    builder.assign(0)
    builder.poll((0, 1), (1, 2))
    if acknowledged_before:
        builder.sent(sending, at=1)
    builder.loss(floor)
    builder.send(3, at=1, by="a")
    if not acknowledged_before:
        builder.sent(sending, at=2)
    builder.ends_with(1, 3, 2)
    return builder


def test_what_was_lost_is_written_again_elsewhere():
    assert moved_by_a_loss(1).kinds() == []


def test_what_was_not_lost_is_not_written_again():
    texts = [one.text for one in moved_by_a_loss(2).anomalies()]
    assert texts == [
        "t-0 has had the values 2, 3 at offset 1, and no power loss explains it.",
        "The value 2 of t-0 was acknowledged at offset 2 and read at 1.",
    ]


def test_a_loss_after_the_send_ended_explains_no_move():
    assert moved_by_a_loss(1, acknowledged_before=True).kinds() == ["inconsistent offsets"]


def test_values_that_were_never_sent():
    builder = HistoryBuilder()
    builder.assign(0)
    builder.poll((0, 7))
    assert builder.kinds() == ["unsent value"]


def test_values_that_were_refused():
    builder = HistoryBuilder()
    builder.send(7, outcome=FAILED)
    builder.assign(0)
    builder.poll((0, 7))
    assert builder.kinds() == ["unsent value"]


def test_values_of_another_partition():
    builder = HistoryBuilder()
    builder.send(7, at=0, tp=P)
    builder.assign({Q: 0})
    builder.poll((0, 7), tp=Q)
    assert builder.kinds() == ["unsent value"]


def test_values_without_an_answer_may_be_read():
    builder = HistoryBuilder()
    builder.send(7, outcome=UNKNOWN)
    builder.sending(8)
    builder.assign(0)
    builder.poll((0, 7), (1, 8))
    assert builder.kinds() == []


@pytest.mark.parametrize(
    ("there", "torn"),
    [((1, 2, 3), False), ((None, None, None), False), ((1, None, 3), True), ((1, 2, None), True), ((2, 1, 3), True)],
)
def test_a_batch_is_whole(there, torn):
    builder = HistoryBuilder()
    builder.send(1, 2, 3, outcome=UNKNOWN)
    builder.send(4, at=3)
    builder.ends_with(*there, 4)
    assert builder.kinds() == (["torn batch"] if torn else [])


def test_another_record_within_a_batch():
    builder = HistoryBuilder()
    builder.send(1, 2, outcome=UNKNOWN)
    builder.send(3, at=1, by="another")
    builder.ends_with(1, 3, 2)
    assert builder.kinds() == ["torn batch"]


def test_deletion_cuts_a_batch():
    builder = HistoryBuilder()
    builder.send(1, 2, outcome=UNKNOWN)
    builder.delete_records(1)
    builder.ends_with(2, start=1)
    assert builder.kinds() == []


def test_a_loss_does_not_cut_a_batch():
    builder = HistoryBuilder()
    builder.send(1, 2, outcome=UNKNOWN)
    builder.loss(1)
    builder.send(3, at=1, by="another")
    builder.ends_with(1, 3)
    assert builder.kinds() == ["torn batch"]


def test_backward_sends():
    builder = HistoryBuilder()
    builder.send(1, at=1)
    builder.send(2, at=0)
    assert builder.kinds() == ["backward sends"]


def test_backward_sends_within_a_batch():
    builder = HistoryBuilder()
    builder.send(1, 2, at=0)
    builder.send(3, at=1)
    assert builder.kinds() == ["inconsistent offsets", "backward sends"]


def test_forward_sends():
    builder = HistoryBuilder()
    builder.send(1, at=0, by="a")
    builder.send(2, at=3, by="a")
    builder.send(3, at=2, by="b")
    builder.send(4, at=0, by="a", tp=Q)
    # Another producer of the same process: its order begins anew.
    builder.send(5, at=1, by="a", order=0)
    assert builder.kinds() == []


def test_sends_go_back_for_a_loss_only():
    for floor, kinds in ((1, []), (2, ["backward sends"])):
        builder = HistoryBuilder()
        builder.send(1, at=1)
        builder.loss(floor)
        builder.send(2, at=0)
        assert builder.kinds() == kinds


def test_without_idempotence_retries_come_out_of_order():
    builder = HistoryBuilder()
    builder.send(1, at=1, idempotent=False)
    builder.send(2, at=0, idempotent=False)
    assert builder.kinds() == []
