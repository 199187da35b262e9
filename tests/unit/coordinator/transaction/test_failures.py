"""The transaction coordinator when markers and records cannot be written, and through restarts and elections."""

from collections.abc import Callable
from pathlib import Path

import pytest

from kbroker.common import TopicPartition
from kbroker.metadata.topics.topic_names import TRANSACTION_STATE_TOPIC
from kbroker.storage.producers.transactions import TransactionMarker
from protocol.errors import ErrorCode
from protocol.records.batch import iter_headers
from tests.unit.support.internal_log import MemoryLog
from tests.unit.support.transaction_coordinator import A0, A1, B0, TIMEOUT_MS, Harness, open_transaction

LOG = Path(__file__).parents[1] / "data" / "transactions-4.3.1.log"
OLD_CLIENT = 0


# Markers that cannot be written.


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
def test_a_marker_is_sent_until_it_is_written(h: Harness, error: ErrorCode):
    producer = open_transaction(h, A0, B0)
    h.markers.errors[B0] = error
    assert h.commit(producer) == (1000, 1)
    h.loop.pass_ms(1000)
    assert h.state() == "PrepareCommit"
    assert h.markers.attempts.count(A0) == 1
    assert h.markers.attempts.count(B0) == 4
    h.markers.errors.clear()
    h.loop.pass_ms(2000)
    assert h.state() == "CompleteCommit"
    assert h.markers.written == [
        (A0, TransactionMarker(1000, 1, True, 0, 2)),
        (B0, TransactionMarker(1000, 1, True, 0, 2)),
    ]


def test_a_marker_that_waits_for_long_is_logged(h: Harness, caplog: pytest.LogCaptureFixture):
    """Shortly after a start it is normal that the groups' partitions are loading."""
    caplog.set_level("INFO", "kbroker.transactions")

    def messages() -> list[str]:
        return [record.getMessage().partition(" transactional_id")[0] for record in caplog.records]

    producer = open_transaction(h, A0, B0)
    h.markers.errors[B0] = ErrorCode.NOT_LEADER_OR_FOLLOWER
    producer = h.commit(producer)
    h.loop.pass_ms(500)
    h.markers.errors.clear()
    h.loop.pass_ms(500)
    assert (h.state(), messages()) == ("CompleteCommit", [])
    assert isinstance(producer, tuple)
    h.add(producer, B0)
    h.markers.errors[B0] = ErrorCode.NOT_LEADER_OR_FOLLOWER
    h.commit(producer)
    h.loop.pass_ms(60_000)
    assert messages() == ["a transaction's marker cannot be written yet"]
    h.markers.errors.clear()
    h.loop.pass_ms(2000)
    assert h.state() == "CompleteCommit"
    assert messages()[1:] == ["a transaction's markers are written"]


def test_a_partition_of_a_deleted_topic_needs_no_marker(h: Harness):
    producer = open_transaction(h, A0, B0)
    h.delete_topic("b")
    assert h.commit(producer) == (1000, 1)
    assert h.markers.attempts == [A0]
    assert h.state() == "CompleteCommit"


def test_a_topic_that_is_deleted_while_its_marker_is_retried(h: Harness):
    producer = open_transaction(h, B0)
    h.markers.errors[B0] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    h.commit(producer)
    h.delete_topic("b")
    h.loop.pass_ms(200)
    assert h.state() == "CompleteCommit"


def test_a_partition_with_a_later_epoch_needs_no_marker(h: Harness):
    """That happens if the coordinator has lost records in a power loss."""
    producer = open_transaction(h, A0, B0)
    h.markers.errors[B0] = ErrorCode.INVALID_PRODUCER_EPOCH
    h.commit(producer)
    assert h.state() == "CompleteCommit"


def test_another_coordinator_writes_the_markers(h: Harness, make: Callable[..., Harness]):
    producer = open_transaction(h, A0, B0)
    h.markers.errors[A0] = ErrorCode.TRANSACTION_COORDINATOR_FENCED
    h.commit(producer)
    h.loop.pass_ms(60_000)
    assert h.state() == "PrepareCommit"
    assert h.markers.attempts.count(A0) == 1
    successor = make(h.crash())
    assert successor.state() == "CompleteCommit"


def test_a_completion_that_cannot_be_written_is_retried(h: Harness):
    producer = open_transaction(h)
    h.markers.held = True
    h.commit(producer)
    h.log.append_error = ErrorCode.KAFKA_STORAGE_ERROR
    h.markers.complete()
    h.loop.pass_ms(1000)
    assert h.state() == "PrepareCommit"
    assert h.add((1000, 1), A0) is ErrorCode.CONCURRENT_TRANSACTIONS
    h.log.append_error = None
    h.loop.pass_ms(2000)
    assert h.state() == "CompleteCommit"
    assert h.markers.attempts == [A0]


# Records that cannot be written.


def test_a_transition_that_cannot_be_written_has_no_effect(h: Harness):
    producer = open_transaction(h)
    h.log.append_error = ErrorCode.NOT_ENOUGH_REPLICAS
    assert h.add(producer, B0) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert h.commit(producer) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert h.init() is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert h.init("new") is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert {entry.transactional_id for entry in h.transactions.list_transactions()} == {"t"}
    h.log.append_error = None
    assert h.transactions.describe("t").partitions == {A0}
    # The failed fencing did not use up an epoch.
    assert h.commit(producer) == (1000, 1)


# Restarts and elections.


def test_a_prepared_transaction_is_completed_after_a_crash(h: Harness, make: Callable[..., Harness]):
    producer = open_transaction(h, A0, B0)
    h.init("aborted")
    h.add((1001, 0), A1, id="aborted")
    h.markers.held = True
    h.commit(producer)
    h.abort((1001, 0), id="aborted")
    successor = make(h.crash())
    assert sorted(successor.markers.written) == [
        (A0, TransactionMarker(1000, 1, True, 0, 2)),
        (A1, TransactionMarker(1001, 1, False, 0, 2)),
        (B0, TransactionMarker(1000, 1, True, 0, 2)),
    ]
    assert (successor.state(), successor.state("aborted")) == ("CompleteCommit", "CompleteAbort")


def test_a_transaction_that_is_not_prepared_stays_open_after_a_crash(h: Harness, make: Callable[..., Harness]):
    producer = open_transaction(h)
    successor = make(h.crash())
    assert successor.state() == "Ongoing"
    assert successor.add(producer, B0) is None
    assert successor.commit(producer) == (1000, 1)


def test_a_transaction_times_out_after_a_restart(h: Harness, make: Callable[..., Harness]):
    open_transaction(h)
    successor = make(h.crash())
    successor.loop.pass_ms(TIMEOUT_MS + 12_000)
    assert successor.state() == "CompleteAbort"


@pytest.mark.parametrize("hours", [5, -5])
def test_a_timeout_does_not_depend_on_the_clock_of_the_former_coordinator(
    h: Harness, make: Callable[..., Harness], hours: int
):
    """Its successor's clock is hours ahead or behind: the transaction is neither aborted at once nor open for hours."""
    producer = open_transaction(h)
    successor = h.crash()
    successor.environment.clock.skew_ms += hours * 3_600_000
    make(successor)
    successor.loop.pass_ms(TIMEOUT_MS - 12_000)
    assert successor.state() == "Ongoing"
    assert successor.add(producer, B0) is None
    successor.loop.pass_ms(24_000)
    assert successor.state() == "CompleteAbort"


@pytest.mark.parametrize("hours", [5, -5])
def test_a_timeout_does_not_depend_on_a_clock_that_jumps(h: Harness, hours: int):
    open_transaction(h)
    h.environment.clock.skew_ms += hours * 3_600_000
    h.loop.pass_ms(TIMEOUT_MS - 12_000)
    assert h.state() == "Ongoing"
    h.loop.pass_ms(24_000)
    assert h.state() == "CompleteAbort"


def test_a_coordinator_that_loses_its_partition_stops(h: Harness):
    producer = open_transaction(h)
    h.markers.held = True
    h.commit(producer)
    h.elect(2)
    assert h.add((1000, 1), A0) is ErrorCode.NOT_COORDINATOR
    assert h.init() is ErrorCode.NOT_COORDINATOR
    h.markers.complete()
    h.loop.run_ready()
    assert "CompleteCommit" not in h.states(), "the next coordinator writes it"
    h.markers.held = False
    h.elect(1)
    assert h.state() == "CompleteCommit"
    assert [marker.coordinator_epoch for _, marker in h.markers.written] == [0, 2]


def test_losing_the_partition_fails_waiting_requests(h: Harness):
    producer = open_transaction(h)
    h.log.held = True
    ending = h.start_operation(h.transactions.end_transaction("t", *producer, True, 2))
    h.elect(2)
    assert str(ending.exception()) == "NOT_COORDINATOR"
    assert h.markers.attempts == []


def test_markers_have_the_leader_epoch_of_the_coordinator(h: Harness):
    h.elect(1)
    producer = open_transaction(h)
    h.commit(producer)
    assert [marker.coordinator_epoch for _, marker in h.markers.written] == [1]


def test_a_partition_that_cannot_be_loaded_is_loaded_later(h: Harness):
    h.elect(2)
    assert h.verify((1000, 0), A0) is ErrorCode.NOT_COORDINATOR
    assert list(h.transactions.list_transactions()) == []
    h.log.read_error = OSError("gone")
    h.elect(1)
    assert h.init() is ErrorCode.NOT_COORDINATOR
    h.log.read_error = None
    h.loop.pass_ms(6000)
    assert h.init() == (1000, 0)


def test_transactions_in_a_log_of_apache_kafka_continue(make: Callable[..., Harness]):
    """In the log of Apache Kafka 4.3.1 the id "gone" has expired."""
    log = MemoryLog()
    data = LOG.read_bytes()
    log.batches[TopicPartition(TRANSACTION_STATE_TOPIC, 0)] = [
        bytearray(data[pos : pos + header.size]) for pos, header in iter_headers(data)
    ]
    h = make(Harness(log))
    assert {(entry.transactional_id, entry.state.state_name) for entry in h.transactions.list_transactions()} == {
        ("t", "CompleteCommit"), ("open", "Ongoing"), ("old", "Ongoing")
    }  # fmt: skip
    assert h.transactions.describe("open").partitions == {A1}
    assert h.add((2, 0), A0, id="open") is None
    assert h.commit((2, 0), id="open") == (2, 1)
    assert h.commit((3, 0), id="old", version=OLD_CLIENT) == (3, 0)


def test_without_its_topic_there_is_no_coordinator(h: Harness):
    open_transaction(h)
    h.delete_topic("__transaction_state")
    assert h.init() is ErrorCode.NOT_COORDINATOR
