"""Steps of transactions and concurrent requests; test_transcripts_of_kafka.py has the result of each request."""

from collections.abc import Callable

from kbroker.storage.producers.transactions import TransactionMarker
from protocol.errors import ErrorCode
from tests.unit.support.transaction_coordinator import A0, A1, B0, Harness, open_transaction

OLD_CLIENT = 0


# One transaction after the other.


def test_a_transaction_is_prepared_then_marked_then_completed(h: Harness):
    producer = h.init()
    assert producer == (1000, 0)
    assert h.add(producer, A0, B0) is None
    assert h.state() == "Ongoing"
    assert h.commit(producer) == (1000, 1)
    # The markers have the next epoch, so that no batch with the old one is accepted after them.
    assert h.markers.written == [
        (A0, TransactionMarker(1000, 1, True, 0, 2)),
        (B0, TransactionMarker(1000, 1, True, 0, 2)),
    ]
    assert h.states() == ["Empty", "Ongoing", "PrepareCommit", "CompleteCommit"]


def test_partitions_are_added_one_after_the_other(h: Harness):
    producer = open_transaction(h)
    start_ms = h.transactions.describe("t").start_ms
    h.loop.pass_ms(5)
    assert h.add(producer, B0) is None
    assert h.transactions.describe("t").partitions == {A0, B0}
    assert h.transactions.describe("t").start_ms == start_ms
    h.log.held = True
    assert h.add(producer, A0, B0) is None, "partitions of the transaction need no record"


def test_partitions_are_verified(h: Harness):
    producer = open_transaction(h)
    assert h.verify(producer, A0, B0) == {A0: ErrorCode.NONE, B0: ErrorCode.TRANSACTION_ABORTABLE}
    assert h.verify((999, 0), A0) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert h.verify((1000, 1), A0) is ErrorCode.PRODUCER_FENCED
    assert h.verify(producer, A0, id="unknown") is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    h.markers.held = True
    h.commit(producer)
    assert h.verify((1000, 1), A0) is ErrorCode.CONCURRENT_TRANSACTIONS
    h.markers.complete()
    h.loop.run_ready()
    assert h.verify((1000, 1), A0) == {A0: ErrorCode.TRANSACTION_ABORTABLE}


# The order of the steps.


def test_no_marker_before_the_prepare_is_committed(h: Harness):
    producer = open_transaction(h)
    h.log.held = True
    ending = h.start_operation(h.transactions.end_transaction("t", *producer, True, 2))
    assert not ending.done()
    assert h.markers.attempts == []
    assert h.state() == "Ongoing"
    h.log.commit()
    h.loop.run_ready()
    assert ending.result() == (1000, 1)
    assert h.markers.attempts == [A0]


def test_the_end_succeeds_when_it_is_decided_and_other_requests_wait_for_the_markers(h: Harness):
    producer = open_transaction(h, A0, B0)
    h.markers.held = True
    producer = h.commit(producer)
    assert producer == (1000, 1)
    assert h.state() == "PrepareCommit"
    assert h.add(producer, A0) is ErrorCode.CONCURRENT_TRANSACTIONS
    assert h.commit(producer) is ErrorCode.CONCURRENT_TRANSACTIONS
    assert h.init() is ErrorCode.CONCURRENT_TRANSACTIONS
    assert "CompleteCommit" not in h.states()
    h.markers.complete()
    h.loop.run_ready()
    assert h.state() == "CompleteCommit"
    assert h.add(producer, A0) is None


def test_a_transaction_is_completed_when_the_last_marker_is_written(h: Harness):
    producer = open_transaction(h, A0, A1, B0)
    h.markers.held = True
    h.commit(producer)
    for tp, _, on_written in list(h.markers.waiting)[:2]:
        assert h.state() == "PrepareCommit"
        on_written(ErrorCode.NONE)
        assert tp not in h.transactions.describe("t").partitions
    h.loop.run_ready()
    assert h.transactions.describe("t").partitions == {B0}
    h.markers.waiting[2][2](ErrorCode.NONE)
    h.loop.run_ready()
    assert h.state() == "CompleteCommit"
    assert h.transactions.describe("t").partitions == frozenset()


def test_one_transition_at_a_time(h: Harness):
    producer = open_transaction(h)
    h.log.held = True
    adding = h.start_operation(h.transactions.add_partitions("t", *producer, [B0], 2))
    assert h.add(producer, A1) is ErrorCode.CONCURRENT_TRANSACTIONS
    assert h.commit(producer) is ErrorCode.CONCURRENT_TRANSACTIONS
    assert h.commit(producer, version=OLD_CLIENT) is ErrorCode.CONCURRENT_TRANSACTIONS
    assert h.init() is ErrorCode.CONCURRENT_TRANSACTIONS
    h.log.commit()
    h.loop.run_ready()
    assert adding.result() is None


def test_the_producer_is_validated_after_the_transition_in_flight(h: Harness):
    """This applies to transactions version 2, whose producers may have the id and epoch that are being written."""
    producer = open_transaction(h)
    h.log.held = True
    adding = h.start_operation(h.transactions.add_partitions("t", *producer, [B0], 2))
    assert h.add((1000, 7), A1) is ErrorCode.CONCURRENT_TRANSACTIONS
    assert h.end((1000, 7)) is ErrorCode.CONCURRENT_TRANSACTIONS
    assert h.end((1000, 7), version=OLD_CLIENT) is ErrorCode.PRODUCER_FENCED
    assert h.end((7, 0), version=OLD_CLIENT) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    h.log.commit()
    h.loop.run_ready()
    assert adding.done()


def test_transactions_that_end_together_share_appends(h: Harness):
    producers = {id: h.init(id) for id in ("x", "y", "z")}
    for id, producer in producers.items():
        h.add(producer, A0, id=id)
    before = {tp: len(batches) for tp, batches in h.log.batches.items()}
    tasks = [
        h.loop.create_task(h.transactions.end_transaction(id, *producer, True, 2)) for id, producer in producers.items()
    ]
    h.loop.run_ready()
    assert [task.result() for task in tasks] == [(producer[0], 1) for producer in producers.values()]
    assert {tp: len(batches) - before[tp] for tp, batches in h.log.batches.items()} == dict.fromkeys(before, 2)


def test_a_cancelled_request_is_completed(h: Harness):
    producer = open_transaction(h)
    h.log.held = True
    ending = h.start_operation(h.transactions.end_transaction("t", *producer, True, 2))
    ending.cancel()
    h.loop.run_ready()
    h.log.held = False
    h.log.commit()
    h.loop.run_ready()
    assert h.state() == "CompleteCommit"


# Repeated requests.


def test_a_repeated_end_has_the_same_result_after_a_restart(h: Harness, make: Callable[..., Harness]):
    producer = open_transaction(h)
    h.commit(producer)
    successor = make(h.crash())
    assert successor.commit(producer) == (1000, 1)
    assert successor.abort(producer) is ErrorCode.INVALID_TXN_STATE
