"""Records that a client refuses: which records are sent again, and which replace them."""

from collections.abc import Callable

import pytest

from kbroker.retry.batch import MAX_REPEATS, Policies, PollBatch
from kbroker.retry.policy import RetryPolicy
from kbroker.retry.records import OutgoingRecord, ReceivedRecord, is_pointer

POLICY = RetryPolicy("orders", "billing", 3, (1000,))


class Refused(Exception):
    pass


class Lost(Exception):
    pass


class Kinds:
    def is_refusal(self, error: Exception) -> bool:
        return isinstance(error, Refused)

    def is_consequence(self, error: Exception) -> bool:
        return isinstance(error, Lost)


def received(offset: int, value: bytes = b"v") -> ReceivedRecord:
    return ReceivedRecord("orders", 0, offset, None, value, (), 5)


def failures(*values: bytes) -> PollBatch:
    batch = PollBatch(Policies(POLICY, ()))
    for offset, value in enumerate(values):
        batch.add_failure(received(offset, value), ValueError("x"))
    return batch


def deliver(batch: PollBatch, refuses: Callable[[list[OutgoingRecord]], bool]) -> list[OutgoingRecord]:
    """Send until all records are acknowledged; a request is refused as a whole. Returns the stored records."""
    stored: list[OutgoingRecord] = []
    for _ in range(100):
        for group in batch.unsent():
            records = [unsent.record for unsent in group]
            is_refused = refuses(records)
            if not is_refused:
                stored += records
            if not batch.settle(group, [Refused("large") if is_refused else None] * len(group), Kinds()):
                break
        else:
            return stored
    raise AssertionError("not all records are acknowledged")


def test_records_of_a_request_that_was_too_large_are_sent_alone() -> None:
    batch = failures(b"1", b"2", b"3")
    stored = deliver(batch, lambda records: len(records) > 1)
    assert [(record.topic, record.value) for record in stored] == [
        ("orders-billing-retry", value) for value in (b"1", b"2", b"3")
    ]
    assert batch.failed == 3


def test_a_record_that_is_too_large_is_replaced() -> None:
    stored = deliver(failures(b"1", b"large", b"3"), lambda records: b"large" in [each.value for each in records])
    assert sorted((record.topic, record.value or b"") for record in stored) == [
        ("dlq.orders", b""), ("orders-billing-retry", b"1"), ("orders-billing-retry", b"3"),
    ]  # fmt: skip
    assert [is_pointer(record.headers) for record in stored].count(True) == 1


def test_a_large_record_may_fit_into_the_dead_letter_topic() -> None:
    stored = deliver(failures(b"large"), lambda records: records[0].topic != "dlq.orders")
    assert [(record.topic, record.value) for record in stored] == [("dlq.orders", b"large")]


def test_a_returned_record_that_is_too_large_fails_the_record() -> None:
    batch = PollBatch(Policies(POLICY, ()))
    batch.add_success(received(0), [OutgoingRecord("out", b"1"), OutgoingRecord("out", b"large")])
    batch.add_success(received(1), [OutgoingRecord("out", b"2")])
    stored = deliver(batch, lambda records: b"large" in [each.value for each in records])
    assert sorted((record.topic, record.value) for record in stored) == [
        ("orders-billing-retry", b"v"), ("out", b"1"), ("out", b"2"),
    ]  # fmt: skip
    assert (batch.succeeded, batch.failed) == (1, 1)


def test_a_pointer_that_is_refused_is_an_error() -> None:
    with pytest.raises(Refused):
        deliver(failures(b"1"), lambda records: True)


def test_other_errors_are_raised_and_consequences_repeated_a_few_times() -> None:
    batch = failures(b"1", b"2")
    [group] = batch.unsent()
    with pytest.raises(OSError, match="disk"):
        batch.settle(group, [None, OSError("disk")], Kinds())
    assert batch.settle(group, [Refused("large"), OSError("because of it")], Kinds()) is False
    for _ in range(MAX_REPEATS):
        assert batch.settle(group, [None, Lost("sequence")], Kinds()) is False
    with pytest.raises(Lost):
        batch.settle(group, [None, Lost("sequence")], Kinds())


def test_an_aborted_transaction_sends_everything_again() -> None:
    batch = failures(b"1", b"2")
    [group] = batch.unsent()
    assert batch.settle(group, [None, None], Kinds())
    assert batch.unsent() == []
    batch.forget_acknowledgements()
    assert [len(each) for each in batch.unsent()] == [2]
