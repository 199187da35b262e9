"""Transactions: their steps, concurrent and repeated requests, empty transactions."""

from collections.abc import Callable

from kbroker.coordinator.transaction.transaction_metadata import TransactionMetadata
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


def test_each_transaction_has_its_own_epoch(h: Harness):
    producer = h.init()
    for committed in (True, False, True):
        assert h.add(producer, A0) is None
        producer = h.end(producer, committed)
    assert producer == (1000, 3)
    assert [(m.producer_epoch, m.committed) for _, m in h.markers.written] == [(1, True), (2, False), (3, True)]


def test_older_clients_keep_their_epoch(h: Harness):
    producer = open_transaction(h, version=OLD_CLIENT)
    assert h.commit(producer, version=OLD_CLIENT) == producer
    assert h.add(producer, A1, version=OLD_CLIENT) is None
    assert h.abort(producer, version=OLD_CLIENT) == producer
    assert h.markers.written == [
        (A0, TransactionMarker(1000, 0, True, 0, 0)),
        (A1, TransactionMarker(1000, 0, False, 0, 0)),
    ]


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
    ending = h.start(h.transactions.end_transaction("t", *producer, True, 2))
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
    adding = h.start(h.transactions.add_partitions("t", *producer, [B0], 2))
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
    adding = h.start(h.transactions.add_partitions("t", *producer, [B0], 2))
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
    ending = h.start(h.transactions.end_transaction("t", *producer, True, 2))
    ending.cancel()
    h.loop.run_ready()
    h.log.held = False
    h.log.commit()
    h.loop.run_ready()
    assert h.state() == "CompleteCommit"


# Repeated requests.


def test_a_repeated_end_has_the_same_result(h: Harness):
    producer = open_transaction(h)
    assert h.commit(producer) == (1000, 1)
    assert h.commit(producer) == (1000, 1)
    assert h.abort(producer) is ErrorCode.INVALID_TXN_STATE
    assert h.states().count("PrepareCommit") == 1
    producer = (1000, 1)
    h.add(producer, A0)
    assert h.abort(producer) == (1000, 2)
    assert h.abort(producer) == (1000, 2)
    assert h.commit(producer) is ErrorCode.INVALID_TXN_STATE


def test_a_late_end_cannot_end_the_next_transaction(h: Harness):
    first = open_transaction(h)
    second = h.commit(first)
    h.add(second, A0)
    assert h.commit(first) is ErrorCode.PRODUCER_FENCED
    assert h.abort(first) is ErrorCode.PRODUCER_FENCED
    assert h.state() == "Ongoing"
    third = h.commit(second)
    h.add(third, A0)
    h.abort(third)
    assert h.commit(first) is ErrorCode.PRODUCER_FENCED


def test_a_repeated_end_of_an_older_client_has_the_same_result(h: Harness):
    producer = open_transaction(h, version=OLD_CLIENT)
    h.commit(producer, version=OLD_CLIENT)
    assert h.commit(producer, version=OLD_CLIENT) == producer
    assert h.abort(producer, version=OLD_CLIENT) is ErrorCode.INVALID_TXN_STATE
    h.add(producer, A0, version=OLD_CLIENT)
    h.abort(producer, version=OLD_CLIENT)
    assert h.abort(producer, version=OLD_CLIENT) == producer
    assert h.commit(producer, version=OLD_CLIENT) is ErrorCode.INVALID_TXN_STATE
    assert h.states().count("PrepareCommit") == 1


def test_a_repeated_end_has_the_same_result_after_a_restart(h: Harness, make: Callable[..., Harness]):
    producer = open_transaction(h)
    h.commit(producer)
    successor = make(h.crash())
    assert successor.commit(producer) == (1000, 1)
    assert successor.abort(producer) is ErrorCode.INVALID_TXN_STATE


# Empty transactions.


def test_an_empty_transaction_cannot_be_committed(h: Harness):
    producer = h.init()
    assert h.commit(producer) is ErrorCode.INVALID_TXN_STATE
    assert h.commit(producer, version=OLD_CLIENT) is ErrorCode.INVALID_TXN_STATE
    assert h.abort(producer, version=OLD_CLIENT) is ErrorCode.INVALID_TXN_STATE
    h.add(producer, A0)
    producer = h.commit(producer)
    assert h.commit(producer) is ErrorCode.INVALID_TXN_STATE


def test_an_abort_of_an_empty_transaction_bumps_the_epoch(h: Harness):
    """Batches that are still in flight must not become part of the producer's next transaction."""
    producer = h.init()
    h.loop.pass_ms(10)
    assert h.abort(producer) == (1000, 1)
    assert h.states() == ["Empty", "PrepareAbort", "CompleteAbort"]
    assert h.markers.written == []
    prepared = h.records()[1]
    assert isinstance(prepared, TransactionMetadata)
    assert prepared.start_ms == prepared.last_update_ms > 0
    assert h.abort((1000, 1)) == (1000, 2)
    h.add((1000, 2), A0)
    assert h.commit((1000, 2)) == (1000, 3)
    assert h.abort((1000, 3)) == (1000, 4)
