"""Transactional ids: fencing, timeouts and expiration. test_transcripts_of_kafka.py has the result of each request."""

from collections.abc import Callable

import pytest

from kbroker.coordinator.transaction.transaction_metadata import TransactionState
from kbroker.coordinator.transaction.transaction_shard import TransactionShard
from kbroker.runtime.turns import TURN_ELEMENTS
from kbroker.storage.producers.transactions import TransactionMarker
from protocol.errors import ErrorCode
from tests.unit.support.calls_per_step import calls_per_step
from tests.unit.support.transaction_coordinator import A0, B0, TIMEOUT_MS, Harness, open_transaction, set_epoch

DAY_MS = 86_400_000
OLD_CLIENT = 0


# Fencing.


def test_only_the_current_producer_can_change_a_transaction(h: Harness):
    open_transaction(h)
    assert h.add((999, 0), A0) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert h.add((1000, 1), A0) is ErrorCode.PRODUCER_FENCED
    assert h.commit((999, 0)) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert h.commit((1000, 1)) is ErrorCode.PRODUCER_FENCED
    for version in (OLD_CLIENT, 2):
        assert h.add((1000, 0), A0, id="unknown", version=version) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
        assert h.commit((1000, 0), id="unknown", version=version) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
        assert h.add((1000, 0), A0, id="", version=version) is ErrorCode.INVALID_REQUEST
        assert h.commit((1000, 0), id="", version=version) is ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("timeout_ms", [0, -1, 900_001])
def test_the_timeout_has_bounds(h: Harness, timeout_ms: int):
    assert h.init(timeout_ms=timeout_ms) is ErrorCode.INVALID_TRANSACTION_TIMEOUT
    assert h.init(timeout_ms=900_000) == (1000, 0)


def test_an_invalid_transactional_id_or_producer_is_rejected(h: Harness):
    assert h.init("") is ErrorCode.INVALID_REQUEST
    assert h.init(producer=(1000, -1)) is ErrorCode.INVALID_REQUEST
    assert h.init(producer=(-1, 3)) is ErrorCode.INVALID_REQUEST


def test_a_new_producer_aborts_the_open_transaction_of_the_former_one(h: Harness):
    former = open_transaction(h)
    h.markers.held = True
    assert h.init() is ErrorCode.CONCURRENT_TRANSACTIONS
    assert h.init() is ErrorCode.CONCURRENT_TRANSACTIONS
    h.markers.complete()
    h.loop.run_ready()
    assert h.markers.written == [(A0, TransactionMarker(1000, 1, False, 0, 2))]
    assert h.init() == (1000, 2)
    # To the former producer it looks like its own abort. Its commit must fail.
    assert h.commit(former) is ErrorCode.PRODUCER_FENCED


def test_fencing_before_transactions_version_2(make: Callable[..., Harness]):
    """transaction.version is below 2."""
    h = make(version=1)
    former = open_transaction(h, version=OLD_CLIENT)
    assert h.init() is ErrorCode.CONCURRENT_TRANSACTIONS
    assert h.markers.written == [(A0, TransactionMarker(1000, 1, False, 0, 1))]
    assert h.commit(former, version=OLD_CLIENT) is ErrorCode.PRODUCER_FENCED
    assert h.init() == (1000, 2)


def test_no_producer_id_is_available(h: Harness):
    h.producer_ids.error = ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert h.init() is ErrorCode.COORDINATOR_NOT_AVAILABLE
    h.producer_ids.error = None
    assert h.init() == (1000, 0)


def test_one_of_two_concurrent_producers_must_retry(h: Harness):
    tasks = [h.loop.create_task(h.transactions.init_producer_id("t", TIMEOUT_MS)) for _ in range(2)]
    h.loop.run_ready()
    results = [task.exception() or task.result() for task in tasks]
    assert results[0] == (1000, 0)
    assert str(results[1]) == "CONCURRENT_TRANSACTIONS"


# Restarts.


def test_a_repeated_bump_is_fenced_after_a_restart(h: Harness, make: Callable[..., Harness]):
    """The last epoch is not in the log, nor is it in Kafka's: the producer has to start again."""
    producer = h.init()
    h.init(producer=producer)
    successor = make(h.crash())
    assert successor.init(producer=producer) is ErrorCode.PRODUCER_FENCED


def test_the_new_producer_id_survives_a_restart_before_the_markers(h: Harness, make: Callable[..., Harness]):
    h.init()
    set_epoch(h, 32766)
    h.add((1000, 32766), A0)
    h.markers.held = True
    assert h.commit((1000, 32766)) == (1001, 0)
    successor = make(h.crash())
    assert successor.markers.written == [(A0, TransactionMarker(1000, 32767, True, 0, 2))]
    assert successor.commit((1000, 32766)) == (1001, 0)
    assert successor.add((1001, 0), A0) is None


# Timeouts and expiration.


def test_a_transaction_times_out(h: Harness):
    producer = open_transaction(h)
    h.loop.pass_ms(TIMEOUT_MS - 1000)
    assert h.state() == "Ongoing"
    h.loop.pass_ms(12_000)
    assert h.state() == "CompleteAbort"
    assert h.markers.written == [(A0, TransactionMarker(1000, 1, False, 0, 2))]
    assert h.commit(producer) is ErrorCode.INVALID_TXN_STATE
    assert h.add(producer, B0) is ErrorCode.PRODUCER_FENCED
    assert h.init(producer=producer) == (1000, 1)


def test_a_timeout_that_cannot_be_written_is_tried_again(h: Harness):
    open_transaction(h)
    h.log.append_error = ErrorCode.NOT_ENOUGH_REPLICAS
    h.loop.pass_ms(TIMEOUT_MS + 12_000)
    assert h.state() == "Ongoing"
    h.log.append_error = None
    h.loop.pass_ms(10_000)
    assert h.state() == "CompleteAbort"
    assert h.markers.written == [(A0, TransactionMarker(1000, 1, False, 0, 2))]


def test_a_transaction_of_a_two_phase_commit_has_no_timeout(make: Callable[..., Harness]):
    h = make(transaction_abort_timed_out_transaction_cleanup_interval_ms=DAY_MS)
    open_transaction(h)
    set_epoch(h, 0, TransactionState.ONGOING, timeout_ms=2**31 - 1)
    h.loop.pass_ms(30 * DAY_MS)
    assert h.state() == "Ongoing"


def test_transactional_ids_expire(make: Callable[..., Harness]):
    h = make(transaction_abort_timed_out_transaction_cleanup_interval_ms=DAY_MS)
    producer = open_transaction(h)
    h.commit(producer)
    h.init("empty")
    h.loop.pass_ms(5 * DAY_MS)
    h.init("later")
    h.loop.pass_ms(3 * DAY_MS)
    assert {entry.transactional_id for entry in h.transactions.list_transactions()} == {"later"}
    assert h.states()[-2:] == ["-", "-"]
    assert h.commit((1000, 1)) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    successor = make(h.crash())
    assert {entry.transactional_id for entry in successor.transactions.list_transactions()} == {"later"}
    assert h.init() == (1003, 0)


def test_transactional_ids_with_an_open_transaction_do_not_expire(make: Callable[..., Harness]):
    h = make(transaction_abort_timed_out_transaction_cleanup_interval_ms=100 * DAY_MS)
    open_transaction(h)
    h.init("marked")
    h.add((1001, 0), B0, id="marked")
    h.markers.held = True
    h.commit((1001, 0), id="marked")
    h.loop.pass_ms(9 * DAY_MS)
    assert (h.state(), h.state("marked")) == ("Ongoing", "PrepareCommit")


def test_an_expiration_that_cannot_be_written_is_tried_again(make: Callable[..., Harness]):
    h = make(transaction_abort_timed_out_transaction_cleanup_interval_ms=DAY_MS)
    h.init()
    h.log.append_error = ErrorCode.NOT_ENOUGH_REPLICAS
    h.loop.pass_ms(8 * DAY_MS)
    assert h.state() == "Empty"
    h.log.append_error = None
    h.loop.pass_ms(3_600_000)
    assert list(h.transactions.list_transactions()) == []


def test_many_transactional_ids_are_checked_in_steps(h: Harness, monkeypatch: pytest.MonkeyPatch):
    for number in range(300):
        h.init(f"id-{number}")
    for name, task in (("is_expired", h.transactions._expire), ("is_timed_out", h.transactions._abort_timed_out)):
        checks = calls_per_step(monkeypatch, TransactionShard, name)
        h.run(h.environment.turns.run(task()))
        assert (sum(checks.values()), max(checks.values())) == (300, TURN_ELEMENTS)
