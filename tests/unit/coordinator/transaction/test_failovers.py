"""Transactions over three brokers whose coordinators, and leaders of partitions, fail."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from kbroker.common import KafkaError
from kbroker.coordinator.runtime.loader import PartitionLoader
from kbroker.coordinator.transaction.transaction_markers import TransactionMarkerSender
from protocol.errors import ErrorCode
from tests.unit.support.coordinator_cluster import TRANSACTIONS, A, B, Cluster

RETRIABLE = {
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.CONCURRENT_TRANSACTIONS,
}
Producer = tuple[int, int]


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    cluster = Cluster()
    yield cluster
    cluster.close()


async def end(cluster: Cluster, producer: Producer, committed: bool) -> Producer:
    """End the transaction as a client does: retry with the current coordinator until the decision is known."""
    while True:
        coordinator = cluster.leader(TRANSACTIONS).transactions
        try:
            return await coordinator.end_transaction("t", *producer, committed, 2)
        except KafkaError as error:
            if error.code not in RETRIABLE:
                raise
        await asyncio.sleep(0.005)


def turn(cluster: Cluster, iterations: int) -> None:
    """Run some iterations of the event loop."""
    for _ in range(iterations):
        cluster.loop.run_until_complete(asyncio.sleep(0))


def state(cluster: Cluster) -> str:
    return cluster.leader(TRANSACTIONS).transactions.describe("t").state.state_name


def test_markers_reach_the_leaders_on_other_brokers(cluster: Cluster) -> None:
    producer = cluster.begin_transaction(A, B)
    ended = cluster.start(end(cluster, producer, True))
    cluster.loop.pass_ms(20)
    assert ended.result() == (producer[0], producer[1] + 1)
    assert cluster.outcomes(A, B) == {A: {True}, B: {True}}
    assert state(cluster) == "CompleteCommit"


@pytest.mark.parametrize("committed", [True, False])
@pytest.mark.parametrize("second", [1, 4, 9, 15, 30])
def test_two_failovers_at_any_step_of_end_txn_do_not_change_the_outcome(second: int, committed: bool) -> None:
    """The coordinator fails after each number of iterations of the event loop, its successor `second` ones later."""
    for first in range(40):
        cluster = Cluster()
        try:
            producer = cluster.begin_transaction(A, B)
            ended = cluster.start(end(cluster, producer, committed))
            turn(cluster, first)
            cluster.kill(1, successor=2)
            turn(cluster, second)
            cluster.restart(1)
            cluster.kill(2, successor=3)
            cluster.loop.pass_ms(10_000)
            assert ended.result() == (producer[0], producer[1] + 1), first
            assert cluster.outcomes(A, B) == {A: {committed}, B: {committed}}, first
            assert state(cluster) == ("CompleteCommit" if committed else "CompleteAbort"), first
        finally:
            cluster.close()


def test_a_leader_that_moves_gets_the_marker_at_its_new_place(cluster: Cluster) -> None:
    """The coordinator's broker does not know of the election when it sends the marker."""
    producer = cluster.begin_transaction(A, B)
    cluster.nodes[1].is_behind = True
    cluster.elect(A, 3)
    ended = cluster.start(end(cluster, producer, True))
    cluster.loop.pass_ms(50)
    assert ended.done()
    assert (state(cluster), cluster.outcomes(A, B)) == ("PrepareCommit", {A: {None}, B: {True}})
    cluster.catch_up(1)
    cluster.loop.pass_ms(3_000)
    assert (state(cluster), cluster.outcomes(A, B)) == ("CompleteCommit", {A: {True}, B: {True}})


def test_markers_for_a_dead_leader_wait_for_its_successor(cluster: Cluster) -> None:
    producer = cluster.begin_transaction(A, B)
    cluster.nodes[2].is_alive = False
    cluster.start(end(cluster, producer, False))
    cluster.loop.pass_ms(1_000)
    assert state(cluster) == "PrepareAbort"
    cluster.loop.pass_ms(20_000)
    assert state(cluster) == "PrepareAbort"
    cluster.kill(2, successor=1)
    # The retry does not wait for its delay, which is 2 s by now.
    cluster.loop.pass_ms(50)
    assert (state(cluster), cluster.outcomes(A, B)) == ("CompleteAbort", {A: {False}, B: {False}})


def test_a_former_coordinator_is_fenced(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    """It does not know of its successor, and its markers arrive after those of the next epoch."""
    producer = cluster.begin_transaction(A)
    cluster.start(end(cluster, producer, True))
    turn(cluster, 4)
    former = cluster.nodes[1]
    former.is_behind = True
    cluster.elect(TRANSACTIONS, 2)
    cluster.loop.pass_ms(5_000)
    assert (state(cluster), cluster.outcomes(A)) == ("CompleteCommit", {A: {True}})
    assert next(former.transactions.list_transactions()).state.state_name != "CompleteCommit"
    markers: Any = former.transactions.runtime.context("t").shard._markers
    assert markers.remaining_partitions("t") is None, "it does not send its markers again"
    assert "TRANSACTION_COORDINATOR_FENCED" in caplog.text


# The coordinator is active only when the high watermark has reached the end of its log.


def commit_that_only_one_successor_has(cluster: Cluster) -> None:
    """Broker 1 fails while it commits; 2 has the decision, 3 does not, so it is not committed. 2 is elected, then 3."""
    producer = cluster.begin_transaction(A, B)
    cluster.held = True
    ended = cluster.start(cluster.leader(TRANSACTIONS).transactions.end_transaction("t", *producer, True, 2))
    turn(cluster, 5)
    cluster.replicate(TRANSACTIONS, 2)
    cluster.kill(1, successor=2)
    turn(cluster, 5)
    assert str(ended.exception()) == "NOT_COORDINATOR"
    # The data partitions are committed at once, __transaction_state is not.
    for _ in range(50):
        cluster.loop.pass_ms(20)
        for tp in (A, B):
            cluster.replicate(tp)
    cluster.elect(TRANSACTIONS, 3)
    cluster.release()
    cluster.loop.pass_ms(100)
    # The third coordinator has an open transaction, which times out.
    cluster.loop.pass_ms(120_000)


def test_a_coordinator_sends_no_markers_for_a_decision_that_may_be_lost(cluster: Cluster) -> None:
    commit_that_only_one_successor_has(cluster)
    assert (state(cluster), cluster.outcomes(A, B)) == ("CompleteAbort", {A: {False}, B: {False}})


def test_a_coordinator_that_is_active_too_early_is_caught(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted mistake: loading does not wait for the high watermark."""

    async def load(self: Any, shard: Any) -> None:
        await self._leader_end_offset()
        await self._replay(shard)

    monkeypatch.setattr(PartitionLoader, "load", load)
    commit_that_only_one_successor_has(cluster)
    assert cluster.outcomes(A, B) != {A: {False}, B: {False}}


def test_a_marker_that_is_dropped_when_the_leader_has_moved_is_caught(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted mistake: NOT_LEADER_OR_FOLLOWER counts as written."""
    on_result = TransactionMarkerSender._on_result

    def drop(self: Any, markers: Any, tp: Any, error: ErrorCode) -> None:
        on_result(self, markers, tp, ErrorCode.NONE if error is ErrorCode.NOT_LEADER_OR_FOLLOWER else error)

    monkeypatch.setattr(TransactionMarkerSender, "_on_result", drop)
    producer = cluster.begin_transaction(A, B)
    cluster.nodes[1].is_behind = True
    cluster.elect(A, 3)
    cluster.start(end(cluster, producer, True))
    cluster.loop.pass_ms(50)
    cluster.catch_up(1)
    cluster.loop.pass_ms(3_000)
    assert (state(cluster), cluster.outcomes(A)) == ("CompleteCommit", {A: {None}}), "the transaction stays open"
