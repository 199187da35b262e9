"""Lost, unseen and unreadable writes; losses under flush.before.ack."""

from kbroker.simulation.checker import render
from kbroker.simulation.checker.history import Corrupt
from tests.unit.simulation.checker.history_builder import OK, UNKNOWN, HistoryBuilder, P, Q


def test_all_records_are_present():
    builder = HistoryBuilder()
    builder.send(1, 2, at=0)
    builder.send(3, at=2)
    builder.ends_with(1, 2, 3)
    assert builder.kinds() == []


def test_an_acknowledged_write_is_lost():
    builder = HistoryBuilder()
    builder.send(1, at=0)
    builder.send(2, at=1)
    builder.send(3, at=2)
    builder.ends_with(1, None, 3)
    # The final reader also went past a record that others know of.
    assert builder.kinds() == ["lost write", "skipped records"]


def test_without_final_reads_nothing_is_known_to_be_lost():
    builder = HistoryBuilder()
    builder.send(1, at=0)
    assert builder.kinds() == []


def test_a_write_without_an_answer_may_be_missing():
    builder = HistoryBuilder()
    builder.send(1, at=0)
    builder.send(2, outcome=UNKNOWN)
    builder.sending(3)
    builder.ends_with(1)
    assert builder.kinds() == []


def test_a_write_without_an_answer_must_stay_once_it_was_read():
    builder = HistoryBuilder()
    builder.send(1, at=0)
    builder.send(2, outcome=UNKNOWN)
    builder.send(3, at=2)
    builder.assign(0)
    builder.poll((0, 1), (1, 2), (2, 3))
    builder.ends_with(1, None, 3)
    assert builder.kinds() == ["lost write", "skipped records"]


def test_acks_0_promises_nothing():
    builder = HistoryBuilder()
    builder.send(1, acks=0)
    builder.send(2, at=0)
    builder.ends_with(2)
    assert builder.kinds() == []


def lost_with_the_power(floor: int | None, *, tp=P) -> HistoryBuilder:
    builder = HistoryBuilder()
    builder.send(1, at=0)
    builder.send(2, at=1)
    builder.send(3, at=2)
    builder.loss(floor, tp)
    builder.send(4, at=1, by="another")
    return builder


def test_a_loss_takes_what_lies_above_its_floor():
    builder = lost_with_the_power(1)
    builder.ends_with(1, 4)
    assert builder.kinds() == []


def test_a_loss_takes_nothing_below_its_floor():
    builder = lost_with_the_power(2)
    builder.ends_with(1, 4)
    assert builder.kinds() == ["lost write", "inconsistent offsets"]


def test_a_loss_takes_nothing_of_a_partition_that_it_does_not_name():
    builder = lost_with_the_power(1, tp=Q)
    builder.ends_with(1, 4)
    assert builder.kinds() == ["lost write", "unreadable at the end", "inconsistent offsets"]


def test_a_loss_takes_a_suffix_and_not_the_middle():
    builder = HistoryBuilder()
    builder.send(1, at=0)
    builder.send(2, at=1)
    builder.send(3, at=2)
    builder.loss(1)
    builder.ends_with(1, None, 3)
    assert builder.kinds() == ["lost write"]


def test_a_loss_takes_nothing_that_is_acknowledged_after_it():
    builder = HistoryBuilder()
    builder.loss(0)
    builder.send(1, at=0)
    builder.send(2, at=1)
    builder.ends_with(None, 2)
    assert "lost write" in builder.kinds()


def acknowledged_over_a_loss(*, attempted_after: bool) -> HistoryBuilder:
    builder = HistoryBuilder()
    sending = builder.sending(1)
    builder.loss(0)
    if attempted_after:
        sending.action.attempted = builder.history.step
    builder.sent(sending, at=0)
    builder.send(2, at=1, by="another")
    builder.ends_with(None, 2)
    return builder


def test_a_response_that_may_have_been_sent_before_the_loss():
    assert acknowledged_over_a_loss(attempted_after=False).kinds() == []


def test_the_response_to_a_retry_after_the_loss():
    """As a broker gives that knows the producer's sequence and not its records any more."""
    assert acknowledged_over_a_loss(attempted_after=True).kinds() == ["lost write", "skipped records"]


def test_what_was_read_after_a_loss_must_stay():
    builder = HistoryBuilder()
    builder.send(1, at=0)
    builder.send(2, at=1)
    builder.loss(1)
    builder.assign(0)
    builder.poll((0, 1), (1, 2))
    builder.send(3, at=2)
    builder.ends_with(1, None, 3)
    assert "lost write" in builder.kinds()


def test_what_was_read_before_a_loss_may_go():
    builder = HistoryBuilder()
    builder.send(1, at=0)
    builder.send(2, outcome=UNKNOWN)
    builder.assign(0)
    builder.poll((0, 1), (1, 2))
    builder.loss(1)
    builder.ends_with(1)
    assert builder.kinds() == []


def deleted(before: int) -> HistoryBuilder:
    builder = HistoryBuilder()
    builder.send(1, 2, at=0)
    builder.send(3, at=2)
    builder.delete_records(before)
    builder.ends_with(3, start=2)
    return builder


def test_deleted_records_may_be_gone():
    assert deleted(2).kinds() == []
    assert deleted(-1).kinds() == []


def test_a_deletion_takes_nothing_else():
    assert deleted(1).kinds() == ["lost write"]


def test_a_deletion_is_not_of_what_is_sent_after_it():
    builder = HistoryBuilder()
    builder.send(1, at=0)
    builder.delete_records(1)
    builder.loss(0)
    builder.send(2, at=0)
    builder.send(3, at=1)
    builder.ends_with(3, start=1)
    assert builder.kinds() == ["lost write"]


def test_acknowledged_as_a_duplicate_without_an_offset():
    for there in (True, False):
        builder = HistoryBuilder()
        builder.send(1, at=None)
        builder.send(2, at=1)
        builder.ends_with(1 if there else None, 2)
        assert builder.kinds() == ([] if there else ["unseen at the end"])


def test_without_an_offset_any_loss_may_have_taken_it():
    builder = HistoryBuilder()
    builder.send(1, at=None)
    builder.loss(0)
    builder.send(2, at=1)
    builder.ends_with(None, 2)
    assert builder.kinds() == []


def test_the_last_reads_stop_short():
    builder = HistoryBuilder()
    builder.send(1, at=0)
    builder.send(2, at=1)
    builder.ends_with(1)
    assert builder.kinds() == ["unreadable at the end"]


def test_a_partition_is_unreadable_at_the_end():
    builder = HistoryBuilder()
    builder.send(1, at=0)
    builder.send(2, at=0, tp=Q)
    builder.ends_with(1)
    assert builder.kinds() == ["unreadable at the end"]


def test_the_end_was_lost():
    builder = HistoryBuilder()
    builder.send(1, at=0)
    builder.send(2, at=1)
    builder.loss(1)
    builder.ends_with(1)
    assert builder.kinds() == []


def test_all_was_deleted():
    builder = HistoryBuilder()
    builder.send(1, at=0)
    builder.send(2, at=1)
    builder.delete_records(2)
    builder.ends_with(start=2)
    assert builder.kinds() == []


def test_corrupt_reads():
    builder = HistoryBuilder()
    builder.do("consumer", Corrupt(P, 3, "wrong CRC"))
    [found] = builder.anomalies()
    assert (found.kind, found.text) == (
        "corrupt read",
        "consumer read corrupt data at offset 3 of t-0: wrong CRC.",
    )
    assert "CORRUPT t-0@3: wrong CRC" in render(builder.history, [found])


def test_flush_before_ack():
    builder = HistoryBuilder()
    builder.send(1, at=0)
    unanswered = builder.sending(2)
    builder.loss(1)
    builder.sent(unanswered, outcome=UNKNOWN)
    builder.ends_with(1)
    assert builder.kinds(durable=True) == []


def test_flush_before_ack_and_the_loss_took_an_acknowledged_record():
    builder = HistoryBuilder()
    builder.send(1, at=0)
    builder.send(2, at=1)
    builder.loss(1)
    builder.loss(1)
    builder.ends_with(1)
    assert builder.kinds() == []
    found = builder.anomalies(durable=True)
    assert [one.kind for one in found] == ["unflushed acknowledgement"]
    assert [one.number for one in found[0].operations] == [1, 2]


def test_flush_before_ack_and_an_answer_during_the_loss():
    builder = HistoryBuilder()
    sending = builder.sending(1)
    builder.loss(0)
    builder.sent(sending, at=0)
    builder.ends_with(1)
    assert builder.kinds(durable=True) == []


def test_flush_before_ack_and_a_read_before_it_was_durable():
    for outcome, at in ((OK, 1), (UNKNOWN, None)):
        builder = HistoryBuilder()
        builder.send(1, at=0)
        sending = builder.sending(2)
        builder.assign(0)
        builder.poll((0, 1), (1, 2))
        builder.loss(1)
        builder.sent(sending, at=at, outcome=outcome)
        builder.ends_with(1)
        assert builder.kinds(durable=True) == ["unflushed read"]
        assert builder.kinds() == []


def test_flush_before_ack_and_what_was_deleted():
    builder = HistoryBuilder()
    builder.send(1, at=0)
    builder.assign(0)
    builder.poll((0, 1))
    builder.delete_records(1)
    builder.loss(0)
    builder.ends_with(start=1)
    assert builder.kinds(durable=True) == []
