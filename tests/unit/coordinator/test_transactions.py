"""Stories of the transaction coordinator: producers that begin, end, come again, are fenced, time out."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kbroker.coordinator.ports import TRANSACTION_TOPIC, Marker
from kbroker.model import TopicPartition
from kbroker.state.txn.states import TransactionState
from kbroker.state.txn.transaction import Transaction
from protocol.errors import ErrorCode
from protocol.records.batch import iter_headers
from tests.unit.coordinator.harness import MemoryLog
from tests.unit.coordinator.transactions_harness import A0, A1, B0, TIMEOUT_MS, Harness

LOG = Path(__file__).parent / "data" / "transactions-4.3.1.log"
DAY_MS = 86_400_000
OLD_CLIENT = 0


@pytest.fixture
def make() -> Iterator[Callable[..., Harness]]:
    made: list[Harness] = []

    def add(harness: Harness | None = None, **config: object) -> Harness:
        made.append(harness or Harness(**config))  # type: ignore[arg-type]
        return made[-1]

    yield add
    for harness in made:
        harness.close()


@pytest.fixture
def h(make: Callable[..., Harness]) -> Harness:
    return make()


def opened(h: Harness, *partitions: object, version: int = 2) -> tuple[int, int]:
    """A producer with an open transaction in a-0, or in the partitions given."""
    producer = h.init()
    assert h.add(producer, *(partitions or (A0,)), version=version) is None
    return producer


def at_epoch(h: Harness, epoch: int, state: TransactionState = TransactionState.EMPTY, **changes: object) -> None:
    """Set what is committed of "t", as if many transactions had been before."""
    entry = h.transactions._owned.active("t").entries["t"]
    entry.transaction = entry.transaction._replace(producer_epoch=epoch, state=state, **changes)  # type: ignore[arg-type]


# One transaction after the other.


def test_a_transaction_is_prepared_then_marked_then_completed(h: Harness):
    producer = h.init()
    assert producer == (1000, 0)
    assert h.add(producer, A0, B0) is None
    assert h.state() == "Ongoing"
    assert h.commit(producer) == (1000, 1)
    # The markers have the next epoch: what the producer has sent with the old one cannot come after them.
    assert h.markers.written == [(A0, Marker(1000, 1, True, 0, 2)), (B0, Marker(1000, 1, True, 0, 2))]
    assert h.states() == ["Empty", "Ongoing", "PrepareCommit", "CompleteCommit"]


def test_each_transaction_has_its_own_epoch(h: Harness):
    producer = h.init()
    for committed in (True, False, True):
        assert h.add(producer, A0) is None
        producer = h.end(producer, committed)
    assert producer == (1000, 3)
    assert [(m.producer_epoch, m.committed) for _, m in h.markers.written] == [(1, True), (2, False), (3, True)]


def test_older_clients_keep_their_epoch(h: Harness):
    producer = opened(h, version=OLD_CLIENT)
    assert h.commit(producer, version=OLD_CLIENT) == producer
    assert h.add(producer, A1, version=OLD_CLIENT) is None
    assert h.abort(producer, version=OLD_CLIENT) == producer
    assert h.markers.written == [(A0, Marker(1000, 0, True, 0, 0)), (A1, Marker(1000, 0, False, 0, 0))]


def test_partitions_are_added_as_they_come(h: Harness):
    producer = opened(h)
    begun_ms = h.transactions.describe("t").start_ms
    h.loop.pass_ms(5)
    assert h.add(producer, B0) is None
    assert h.transactions.describe("t").partitions == {A0, B0}
    assert h.transactions.describe("t").start_ms == begun_ms
    h.log.held = True
    assert h.add(producer, A0, B0) is None, "what is there already needs no write"


def test_who_may_write_is_verified(h: Harness):
    producer = opened(h)
    assert h.verify(producer, A0, B0) == {A0: ErrorCode.NONE, B0: ErrorCode.TRANSACTION_ABORTABLE}
    assert h.verify((999, 0), A0) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert h.verify((1000, 1), A0) is ErrorCode.PRODUCER_FENCED
    assert h.verify(producer, A0, id="unknown") is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    h.markers.held = True
    h.commit(producer)
    assert h.verify((1000, 1), A0) is ErrorCode.CONCURRENT_TRANSACTIONS
    h.markers.answer()
    h.loop.settle()
    assert h.verify((1000, 1), A0) == {A0: ErrorCode.TRANSACTION_ABORTABLE}


# The order of things.


def test_no_marker_before_the_prepare_is_committed(h: Harness):
    producer = opened(h)
    h.log.held = True
    ending = h.start(h.transactions.end("t", *producer, True, 2))
    assert not ending.done()
    assert h.markers.asked == []
    assert h.state() == "Ongoing"
    h.log.commit()
    h.loop.settle()
    assert ending.result() == (1000, 1)
    assert h.markers.asked == [A0]


def test_the_end_is_answered_when_it_is_decided_and_others_wait_for_the_markers(h: Harness):
    producer = opened(h, A0, B0)
    h.markers.held = True
    producer = h.commit(producer)
    assert producer == (1000, 1)
    assert h.state() == "PrepareCommit"
    assert h.add(producer, A0) is ErrorCode.CONCURRENT_TRANSACTIONS
    assert h.commit(producer) is ErrorCode.CONCURRENT_TRANSACTIONS
    assert h.init() is ErrorCode.CONCURRENT_TRANSACTIONS
    assert "CompleteCommit" not in h.states()
    h.markers.answer()
    h.loop.settle()
    assert h.state() == "CompleteCommit"
    assert h.add(producer, A0) is None


def test_it_is_completed_only_when_the_last_marker_is_there(h: Harness):
    producer = opened(h, A0, A1, B0)
    h.markers.held = True
    h.commit(producer)
    for tp, _, done in list(h.markers.waiting)[:2]:
        assert h.state() == "PrepareCommit"
        done(ErrorCode.NONE)
        assert tp not in h.transactions.describe("t").partitions
    h.loop.settle()
    assert h.transactions.describe("t").partitions == {B0}
    h.markers.waiting[2][2](ErrorCode.NONE)
    h.loop.settle()
    assert h.state() == "CompleteCommit"
    assert h.transactions.describe("t").partitions == frozenset()


def test_one_change_at_a_time(h: Harness):
    producer = opened(h)
    h.log.held = True
    adding = h.start(h.transactions.add_partitions("t", *producer, [B0], 2))
    assert h.add(producer, A1) is ErrorCode.CONCURRENT_TRANSACTIONS
    assert h.commit(producer) is ErrorCode.CONCURRENT_TRANSACTIONS
    assert h.commit(producer, version=OLD_CLIENT) is ErrorCode.CONCURRENT_TRANSACTIONS
    assert h.init() is ErrorCode.CONCURRENT_TRANSACTIONS
    h.log.commit()
    h.loop.settle()
    assert adding.result() is None


def test_a_request_before_the_change_is_there_is_judged_after_it(h: Harness):
    """Only v2 asks for the change first: its producer may have the id and epoch that are being written."""
    producer = opened(h)
    h.log.held = True
    adding = h.start(h.transactions.add_partitions("t", *producer, [B0], 2))
    assert h.add((1000, 7), A1) is ErrorCode.CONCURRENT_TRANSACTIONS
    assert h.end((1000, 7)) is ErrorCode.CONCURRENT_TRANSACTIONS
    assert h.end((1000, 7), version=OLD_CLIENT) is ErrorCode.PRODUCER_FENCED
    assert h.end((7, 0), version=OLD_CLIENT) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    h.log.commit()
    h.loop.settle()
    assert adding.done()


def test_transactions_that_end_together_share_appends(h: Harness):
    producers = {id: h.init(id) for id in ("x", "y", "z")}
    for id, producer in producers.items():
        h.add(producer, A0, id=id)
    before = {tp: len(batches) for tp, batches in h.log.batches.items()}
    tasks = [h.loop.create_task(h.transactions.end(id, *one, True, 2)) for id, one in producers.items()]
    h.loop.settle()
    assert [task.result() for task in tasks] == [(one[0], 1) for one in producers.values()]
    assert {tp: len(batches) - before[tp] for tp, batches in h.log.batches.items()} == dict.fromkeys(before, 2)


def test_a_client_that_went_away_leaves_its_request_behind(h: Harness):
    producer = opened(h)
    h.log.held = True
    ending = h.start(h.transactions.end("t", *producer, True, 2))
    ending.cancel()
    h.loop.settle()
    h.log.held = False
    h.log.commit()
    h.loop.settle()
    assert h.state() == "CompleteCommit"


# The same request again.


def test_an_end_that_is_repeated_is_answered_as_before(h: Harness):
    producer = opened(h)
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
    first = opened(h)
    second = h.commit(first)
    h.add(second, A0)
    assert h.commit(first) is ErrorCode.PRODUCER_FENCED
    assert h.abort(first) is ErrorCode.PRODUCER_FENCED
    assert h.state() == "Ongoing"
    third = h.commit(second)
    h.add(third, A0)
    h.abort(third)
    assert h.commit(first) is ErrorCode.PRODUCER_FENCED


def test_an_end_of_an_older_client_that_is_repeated(h: Harness):
    producer = opened(h, version=OLD_CLIENT)
    h.commit(producer, version=OLD_CLIENT)
    assert h.commit(producer, version=OLD_CLIENT) == producer
    assert h.abort(producer, version=OLD_CLIENT) is ErrorCode.INVALID_TXN_STATE
    h.add(producer, A0, version=OLD_CLIENT)
    h.abort(producer, version=OLD_CLIENT)
    assert h.abort(producer, version=OLD_CLIENT) == producer
    assert h.commit(producer, version=OLD_CLIENT) is ErrorCode.INVALID_TXN_STATE
    assert h.states().count("PrepareCommit") == 1


def test_an_end_repeated_after_a_restart(h: Harness, make: Callable[..., Harness]):
    producer = opened(h)
    h.commit(producer)
    again = make(h.restarted())
    assert again.commit(producer) == (1000, 1)
    assert again.abort(producer) is ErrorCode.INVALID_TXN_STATE


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
    """The producer may have sent what has not arrived: with the new epoch it cannot become part of the next one."""
    producer = h.init()
    h.loop.pass_ms(10)
    assert h.abort(producer) == (1000, 1)
    assert h.states() == ["Empty", "PrepareAbort", "CompleteAbort"]
    assert h.markers.written == []
    prepared = h.records()[1]
    assert isinstance(prepared, Transaction)
    assert prepared.start_ms == prepared.last_update_ms > 0
    assert h.abort((1000, 1)) == (1000, 2)
    h.add((1000, 2), A0)
    assert h.commit((1000, 2)) == (1000, 3)
    assert h.abort((1000, 3)) == (1000, 4)


# Who is the producer.


def test_others_cannot_touch_a_transaction(h: Harness):
    opened(h)
    assert h.add((999, 0), A0) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert h.add((1000, 1), A0) is ErrorCode.PRODUCER_FENCED
    assert h.commit((999, 0)) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert h.commit((1000, 1)) is ErrorCode.PRODUCER_FENCED
    for version in (OLD_CLIENT, 2):
        assert h.add((1000, 0), A0, id="unknown", version=version) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
        assert h.commit((1000, 0), id="unknown", version=version) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
        assert h.add((1000, 0), A0, id="", version=version) is ErrorCode.INVALID_REQUEST
        assert h.commit((1000, 0), id="", version=version) is ErrorCode.INVALID_REQUEST


def test_a_new_producer_fences_the_former(h: Harness):
    former = h.init()
    assert h.init() == (1000, 1)
    assert h.add(former, A0) is ErrorCode.PRODUCER_FENCED
    assert h.abort(former) is ErrorCode.PRODUCER_FENCED


def test_a_new_producer_aborts_what_the_former_has_open(h: Harness):
    former = opened(h)
    h.markers.held = True
    assert h.init() is ErrorCode.CONCURRENT_TRANSACTIONS
    assert h.init() is ErrorCode.CONCURRENT_TRANSACTIONS
    h.markers.answer()
    h.loop.settle()
    assert h.markers.written == [(A0, Marker(1000, 1, False, 0, 2))]
    assert h.init() == (1000, 2)
    # To the former it looks like its own abort; its commit must fail.
    assert h.commit(former) is ErrorCode.PRODUCER_FENCED


def test_the_former_finds_its_transaction_aborted(h: Harness):
    former = opened(h)
    assert h.init() is ErrorCode.CONCURRENT_TRANSACTIONS
    assert h.commit(former) is ErrorCode.INVALID_TXN_STATE
    assert h.abort(former) == (1000, 1)


def test_fencing_without_epoch_bumps_of_transactions(make: Callable[..., Harness]):
    """transaction.version below 2."""
    h = make(version=1)
    former = opened(h, version=OLD_CLIENT)
    assert h.init() is ErrorCode.CONCURRENT_TRANSACTIONS
    assert h.markers.written == [(A0, Marker(1000, 1, False, 0, 1))]
    assert h.commit(former, version=OLD_CLIENT) is ErrorCode.PRODUCER_FENCED
    assert h.init() == (1000, 2)


@pytest.mark.parametrize("timeout_ms", [0, -1, 900_001])
def test_timeouts_out_of_bounds(h: Harness, timeout_ms: int):
    assert h.init(timeout_ms=timeout_ms) is ErrorCode.INVALID_TRANSACTION_TIMEOUT
    assert h.init(timeout_ms=900_000) == (1000, 0)


def test_a_producer_without_a_name(h: Harness):
    assert h.init("") is ErrorCode.INVALID_REQUEST
    assert h.init(producer=(1000, -1)) is ErrorCode.INVALID_REQUEST
    assert h.init(producer=(-1, 3)) is ErrorCode.INVALID_REQUEST


def test_no_producer_id_can_be_had(h: Harness):
    h.producer_ids.error = ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert h.init() is ErrorCode.COORDINATOR_NOT_AVAILABLE
    h.producer_ids.error = None
    assert h.init() == (1000, 0)


def test_two_that_begin_at_once(h: Harness):
    tasks = [h.loop.create_task(h.transactions.init_producer_id("t", TIMEOUT_MS)) for _ in range(2)]
    h.loop.settle()
    results = [task.exception() or task.result() for task in tasks]
    assert results[0] == (1000, 0)
    assert str(results[1]) == "CONCURRENT_TRANSACTIONS"


# KIP-360: a producer goes on after an error with what it has.


def test_a_producer_bumps_its_own_epoch(h: Harness):
    producer = h.init()
    assert h.init(producer=producer) == (1000, 1)
    assert h.init(producer=producer) == (1000, 1), "its answer was lost"
    assert h.init(producer=(1000, 1)) == (1000, 2)
    assert h.init(producer=producer) is ErrorCode.PRODUCER_FENCED


def test_a_producer_cannot_bump_after_another_has_come(h: Harness):
    former = h.init()
    h.init()
    assert h.init(producer=former) is ErrorCode.PRODUCER_FENCED
    assert h.init(producer=(999, 0)) is ErrorCode.PRODUCER_FENCED
    assert h.init(producer=(1000, 1)) == (1000, 2)


def test_a_producer_whose_id_was_forgotten_gets_a_new_one(h: Harness):
    assert h.init(producer=(77, 5)) == (1000, 0)


def test_a_bump_that_is_repeated_after_a_restart_is_fenced(h: Harness, make: Callable[..., Harness]):
    """The last epoch is not written down, in Kafka neither: the producer has to begin anew."""
    producer = h.init()
    h.init(producer=producer)
    again = make(h.restarted())
    assert again.init(producer=producer) is ErrorCode.PRODUCER_FENCED


# The end of epochs.


def test_the_highest_epoch_leads_to_a_new_producer_id(h: Harness):
    h.init()
    at_epoch(h, 32766)
    assert h.init() == (1001, 0)
    at_epoch(h, 32766)
    assert h.init(producer=(1001, 32766)) == (1002, 0)
    assert h.init(producer=(1001, 32766)) == (1002, 0), "its answer was lost"


def test_an_end_with_the_last_epoch_gives_a_new_producer_id(h: Harness):
    h.init()
    at_epoch(h, 32766)
    h.add((1000, 32766), A0)
    h.markers.held = True
    assert h.commit((1000, 32766)) == (1001, 0)
    assert h.add((1001, 0), A0) is ErrorCode.CONCURRENT_TRANSACTIONS
    h.markers.answer()
    h.loop.settle()
    assert h.markers.written == [(A0, Marker(1000, 32767, True, 0, 2))]
    assert h.commit((1000, 32766)) == (1001, 0), "the same again"
    assert h.abort((1000, 32766)) is ErrorCode.INVALID_TXN_STATE
    assert h.add((1001, 0), A0) is None
    assert h.commit((1000, 32766)) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert h.commit((1001, 0)) == (1001, 1)


def test_the_new_producer_id_survives_a_restart_before_the_markers(h: Harness, make: Callable[..., Harness]):
    h.init()
    at_epoch(h, 32766)
    h.add((1000, 32766), A0)
    h.markers.held = True
    assert h.commit((1000, 32766)) == (1001, 0)
    again = make(h.restarted())
    assert again.markers.written == [(A0, Marker(1000, 32767, True, 0, 2))]
    assert again.commit((1000, 32766)) == (1001, 0)
    assert again.add((1001, 0), A0) is None


def test_fencing_with_the_last_epoch(h: Harness):
    h.init()
    at_epoch(h, 32766)
    h.add((1000, 32766), A0)
    assert h.init() is ErrorCode.CONCURRENT_TRANSACTIONS
    assert h.markers.written == [(A0, Marker(1000, 32767, False, 0, 2))]
    assert h.abort((1000, 32766)) == (1001, 0)
    assert h.init() == (1001, 1)


# Timeouts and expiry.


def test_a_transaction_times_out(h: Harness):
    producer = opened(h)
    h.loop.pass_ms(TIMEOUT_MS - 1000)
    assert h.state() == "Ongoing"
    h.loop.pass_ms(12_000)
    assert h.state() == "CompleteAbort"
    assert h.markers.written == [(A0, Marker(1000, 1, False, 0, 2))]
    assert h.commit(producer) is ErrorCode.INVALID_TXN_STATE
    assert h.add(producer, B0) is ErrorCode.PRODUCER_FENCED
    assert h.init(producer=producer) == (1000, 1)


def test_a_timeout_without_epoch_bumps_of_transactions(make: Callable[..., Harness]):
    h = make(version=1)
    producer = opened(h, version=OLD_CLIENT)
    h.loop.pass_ms(TIMEOUT_MS + 12_000)
    assert h.markers.written == [(A0, Marker(1000, 1, False, 0, 1))]
    assert h.commit(producer, version=OLD_CLIENT) is ErrorCode.PRODUCER_FENCED
    assert h.init(producer=producer) is ErrorCode.PRODUCER_FENCED
    assert h.init() == (1000, 2)


def test_a_timeout_with_the_last_epoch(h: Harness):
    h.init()
    at_epoch(h, 32766)
    h.add((1000, 32766), A0)
    h.loop.pass_ms(TIMEOUT_MS + 12_000)
    assert h.state() == "CompleteAbort"
    # To the producer it is the answer to its own bump.
    assert h.init(producer=(1000, 32766)) == (1001, 0)
    assert h.add((1001, 0), A0) is None


def test_partitions_do_not_prolong_a_transaction(h: Harness):
    producer = opened(h)
    h.loop.pass_ms(TIMEOUT_MS - 10_000)
    assert h.add(producer, B0) is None
    h.loop.pass_ms(22_000)
    assert h.state() == "CompleteAbort"


def test_a_timeout_that_cannot_be_written_is_tried_again(h: Harness):
    opened(h)
    h.log.refusal = ErrorCode.NOT_ENOUGH_REPLICAS
    h.loop.pass_ms(TIMEOUT_MS + 12_000)
    assert h.state() == "Ongoing"
    h.log.refusal = None
    h.loop.pass_ms(10_000)
    assert h.state() == "CompleteAbort"
    assert h.markers.written == [(A0, Marker(1000, 1, False, 0, 2))]


def test_a_transaction_of_a_two_phase_commit_has_no_timeout(make: Callable[..., Harness]):
    h = make(transaction_abort_timed_out_transaction_cleanup_interval_ms=DAY_MS)
    opened(h)
    at_epoch(h, 0, TransactionState.ONGOING, timeout_ms=2**31 - 1)
    h.loop.pass_ms(30 * DAY_MS)
    assert h.state() == "Ongoing"


def test_transactional_ids_expire(make: Callable[..., Harness]):
    h = make(transaction_abort_timed_out_transaction_cleanup_interval_ms=DAY_MS)
    producer = opened(h)
    h.commit(producer)
    h.init("empty")
    h.loop.pass_ms(5 * DAY_MS)
    h.init("later")
    h.loop.pass_ms(3 * DAY_MS)
    assert {one.transactional_id for one in h.transactions.list()} == {"later"}
    assert h.states()[-2:] == ["-", "-"]
    assert h.commit((1000, 1)) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    again = make(h.restarted())
    assert {one.transactional_id for one in again.transactions.list()} == {"later"}
    assert h.init() == (1003, 0)


def test_what_is_open_does_not_expire(make: Callable[..., Harness]):
    h = make(transaction_abort_timed_out_transaction_cleanup_interval_ms=100 * DAY_MS)
    opened(h)
    h.init("marked")
    h.add((1001, 0), B0, id="marked")
    h.markers.held = True
    h.commit((1001, 0), id="marked")
    h.loop.pass_ms(9 * DAY_MS)
    assert (h.state(), h.state("marked")) == ("Ongoing", "PrepareCommit")


def test_expiry_that_cannot_be_written_is_tried_again(make: Callable[..., Harness]):
    h = make(transaction_abort_timed_out_transaction_cleanup_interval_ms=DAY_MS)
    h.init()
    h.log.refusal = ErrorCode.NOT_ENOUGH_REPLICAS
    h.loop.pass_ms(8 * DAY_MS)
    assert h.state() == "Empty"
    h.log.refusal = None
    h.loop.pass_ms(3_600_000)
    assert h.transactions.list() == []


# Markers that do not get through.


@pytest.mark.parametrize(
    "error",
    [
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.NOT_COORDINATOR,
    ],
)
def test_a_marker_is_sent_until_it_is_there(h: Harness, error: ErrorCode):
    producer = opened(h, A0, B0)
    h.markers.errors[B0] = error
    assert h.commit(producer) == (1000, 1)
    h.loop.pass_ms(1000)
    assert h.state() == "PrepareCommit"
    assert h.markers.asked.count(A0) == 1
    assert h.markers.asked.count(B0) == 4
    h.markers.errors.clear()
    h.loop.pass_ms(2000)
    assert h.state() == "CompleteCommit"
    assert h.markers.written == [(A0, Marker(1000, 1, True, 0, 2)), (B0, Marker(1000, 1, True, 0, 2))]


def test_a_partition_of_a_deleted_topic_needs_no_marker(h: Harness):
    producer = opened(h, A0, B0)
    h.delete_topic("b")
    assert h.commit(producer) == (1000, 1)
    assert h.markers.asked == [A0]
    assert h.state() == "CompleteCommit"


def test_a_topic_that_is_deleted_while_its_marker_is_tried(h: Harness):
    producer = opened(h, B0)
    h.markers.errors[B0] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    h.commit(producer)
    h.delete_topic("b")
    h.loop.pass_ms(200)
    assert h.state() == "CompleteCommit"


def test_a_partition_with_a_later_epoch_is_done(h: Harness):
    """Only a coordinator that forgot something can see it, after a power loss."""
    producer = opened(h, A0, B0)
    h.markers.errors[B0] = ErrorCode.INVALID_PRODUCER_EPOCH
    h.commit(producer)
    assert h.state() == "CompleteCommit"


def test_another_coordinator_writes_the_markers(h: Harness, make: Callable[..., Harness]):
    producer = opened(h, A0, B0)
    h.markers.errors[A0] = ErrorCode.TRANSACTION_COORDINATOR_FENCED
    h.commit(producer)
    h.loop.pass_ms(60_000)
    assert h.state() == "PrepareCommit"
    assert h.markers.asked.count(A0) == 1
    again = make(h.restarted())
    assert again.state() == "CompleteCommit"


def test_a_completion_that_cannot_be_written_is_tried_again(h: Harness):
    producer = opened(h)
    h.markers.held = True
    h.commit(producer)
    h.log.refusal = ErrorCode.KAFKA_STORAGE_ERROR
    h.markers.answer()
    h.loop.pass_ms(1000)
    assert h.state() == "PrepareCommit"
    assert h.add((1000, 1), A0) is ErrorCode.CONCURRENT_TRANSACTIONS
    h.log.refusal = None
    h.loop.pass_ms(2000)
    assert h.state() == "CompleteCommit"
    assert h.markers.asked == [A0]


# Writes that fail.


def test_a_change_that_cannot_be_written_has_not_happened(h: Harness):
    producer = opened(h)
    h.log.refusal = ErrorCode.NOT_ENOUGH_REPLICAS
    assert h.add(producer, B0) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert h.commit(producer) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert h.init() is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert h.init("new") is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert {one.transactional_id for one in h.transactions.list()} == {"t"}
    h.log.refusal = None
    assert h.transactions.describe("t").partitions == {A0}
    # That the fencing failed did not cost an epoch.
    assert h.commit(producer) == (1000, 1)


# Restarts and elections.


def test_what_was_prepared_is_completed_after_a_crash(h: Harness, make: Callable[..., Harness]):
    producer = opened(h, A0, B0)
    h.init("aborted")
    h.add((1001, 0), A1, id="aborted")
    h.markers.held = True
    h.commit(producer)
    h.abort((1001, 0), id="aborted")
    again = make(h.restarted())
    assert sorted(again.markers.written) == [
        (A0, Marker(1000, 1, True, 0, 2)),
        (A1, Marker(1001, 1, False, 0, 2)),
        (B0, Marker(1000, 1, True, 0, 2)),
    ]
    assert (again.state(), again.state("aborted")) == ("CompleteCommit", "CompleteAbort")


def test_what_was_not_prepared_stays_open_after_a_crash(h: Harness, make: Callable[..., Harness]):
    producer = opened(h)
    again = make(h.restarted())
    assert again.state() == "Ongoing"
    assert again.add(producer, B0) is None
    assert again.commit(producer) == (1000, 1)


def test_a_transaction_times_out_after_a_restart(h: Harness, make: Callable[..., Harness]):
    opened(h)
    again = make(h.restarted())
    again.loop.pass_ms(TIMEOUT_MS + 12_000)
    assert again.state() == "CompleteAbort"


def test_a_coordinator_that_loses_its_partition_stops(h: Harness):
    producer = opened(h)
    h.markers.held = True
    h.commit(producer)
    h.elect(2)
    assert h.add((1000, 1), A0) is ErrorCode.NOT_COORDINATOR
    assert h.init() is ErrorCode.NOT_COORDINATOR
    h.markers.answer()
    h.loop.settle()
    assert "CompleteCommit" not in h.states(), "its successor writes that"
    h.markers.held = False
    h.elect(1)
    assert h.state() == "CompleteCommit"
    assert [marker.coordinator_epoch for _, marker in h.markers.written] == [0, 2]


def test_who_waits_when_the_partition_is_lost_is_told(h: Harness):
    producer = opened(h)
    h.log.held = True
    ending = h.start(h.transactions.end("t", *producer, True, 2))
    h.elect(2)
    assert str(ending.exception()) == "NOT_COORDINATOR"
    assert h.markers.asked == []


def test_markers_have_the_epoch_of_the_coordinator(h: Harness):
    h.elect(1)
    producer = opened(h)
    h.commit(producer)
    assert [marker.coordinator_epoch for _, marker in h.markers.written] == [1]


def test_while_loading_and_elsewhere(h: Harness):
    h.elect(2)
    assert h.verify((1000, 0), A0) is ErrorCode.NOT_COORDINATOR
    assert h.transactions.list() == []
    h.log.read_error = OSError("gone")
    h.elect(1)
    assert h.init() is ErrorCode.NOT_COORDINATOR
    h.log.read_error = None
    h.loop.pass_ms(6000)
    assert h.init() == (1000, 0)


def test_what_kafka_wrote_is_gone_on_with(make: Callable[..., Harness]):
    """The log of Apache Kafka 4.3.1; "gone" had expired there."""
    log = MemoryLog()
    data = LOG.read_bytes()
    log.batches[TopicPartition(TRANSACTION_TOPIC, 0)] = [
        bytearray(data[pos : pos + header.size]) for pos, header in iter_headers(data)
    ]
    h = make(Harness(log))
    assert {(one.transactional_id, one.state.label) for one in h.transactions.list()} == {
        ("t", "CompleteCommit"), ("open", "Ongoing"), ("old", "Ongoing")
    }  # fmt: skip
    assert h.transactions.describe("open").partitions == {A1}
    assert h.add((2, 0), A0, id="open") is None
    assert h.commit((2, 0), id="open") == (2, 1)
    assert h.commit((3, 0), id="old", version=OLD_CLIENT) == (3, 0)


def test_a_topic_that_is_deleted_takes_its_transactions_along(h: Harness):
    opened(h)
    h.delete_topic("__transaction_state")
    assert h.init() is ErrorCode.NOT_COORDINATOR
