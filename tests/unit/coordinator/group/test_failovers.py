"""Groups whose coordinator fails, or loses its partition and gets it back."""

from collections.abc import Iterator
from typing import Any

import pytest

from kbroker.coordinator.runtime.coordinator_runtime import CoordinatorRuntime
from kbroker.coordinator.transaction.add_partitions_to_txn_manager import ProducerIdentity
from kbroker.metadata.image import MetadataDelta
from protocol.errors import ErrorCode
from protocol.messages.k08_offset_commits import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from protocol.messages.k11_classic_groups import HeartbeatRequest
from protocol.messages.k22_transactions import EndTxnRequest
from tests.unit.coordinator.group.test_group_coordinator import (
    commit_error,
    commit_request,
    fetch_request,
    join_request,
    offsets_in,
    sync_request,
)
from tests.unit.support.coordinator_cluster import GROUPS, TRANSACTIONS, Cluster

LOST = ErrorCode.NOT_COORDINATOR


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    cluster = Cluster()
    yield cluster
    cluster.close()


def call(cluster: Cluster, request: Any, version: int) -> Any:
    return cluster.request(GROUPS, request, version)


def commit(cluster: Cluster, offset: int, **member: Any) -> int:
    return commit_error(call(cluster, commit_request(offset, topic="a", **member), 9))


def offset(cluster: Cluster) -> list[int]:
    return offsets_in(call(cluster, fetch_request(), 9)).get("a", [])


def stable_group(cluster: Cluster) -> str:
    member_id: str = call(cluster, join_request(), 9).member_id
    joined = call(cluster, join_request(member_id), 9)
    assert call(cluster, sync_request(member_id, joined.generation_id), 4).error_code == 0
    return member_id


def heartbeat(cluster: Cluster, member_id: str) -> ErrorCode:
    request = HeartbeatRequest(group_id="g", generation_id=1, member_id=member_id)
    return ErrorCode(call(cluster, request, 4).error_code)


def test_a_group_keeps_its_generation_members_and_offsets(cluster: Cluster) -> None:
    member_id = stable_group(cluster)
    assert commit(cluster, 7, member_id=member_id, generation=1) == 0
    cluster.kill(1, successor=2)
    # While the group is loading a member must not give up.
    assert heartbeat(cluster, member_id) is ErrorCode.NONE
    cluster.loop.pass_ms(100)
    assert heartbeat(cluster, member_id) is ErrorCode.NONE
    assert offset(cluster) == [7]
    assert commit(cluster, 8, member_id=member_id, generation=1) == 0
    cluster.kill(2, successor=3)
    cluster.loop.pass_ms(100)
    assert call(cluster, sync_request(member_id), 4).assignment == b"A"
    assert offset(cluster) == [8]


def test_members_that_wait_for_a_rebalance_find_the_next_coordinator(cluster: Cluster) -> None:
    stable_group(cluster)
    other = call(cluster, join_request(), 9).member_id
    waiting = cluster.start(cluster.leader(GROUPS).serve(join_request(other), 9))
    cluster.loop.pass_ms(10)
    assert not waiting.done()
    cluster.elect(GROUPS, 2)
    cluster.loop.run_ready()
    assert waiting.result().error_code == LOST


@pytest.mark.parametrize("successor_has_it", [True, False])
def test_a_commit_in_flight_at_a_failover_has_an_unknown_outcome_and_can_be_repeated(
    cluster: Cluster, successor_has_it: bool
) -> None:
    assert commit(cluster, 1) == 0
    cluster.held = True
    in_flight = cluster.start(cluster.leader(GROUPS).serve(commit_request(2, topic="a"), 9))
    cluster.loop.run_ready()
    assert not in_flight.done()
    if successor_has_it:
        cluster.replicate(GROUPS, 2)
    cluster.held = False
    cluster.kill(1, successor=2)
    cluster.loop.pass_ms(100)
    assert commit_error(in_flight.result()) == LOST
    assert offset(cluster) == [2 if successor_has_it else 1]
    assert commit(cluster, 2) == 0
    assert offset(cluster) == [2]


def test_an_offset_that_only_the_successor_has_is_not_returned_before_it_is_committed(cluster: Cluster) -> None:
    """Another failover could lose it, and the consumer would go back."""
    assert commit(cluster, 1) == 0
    cluster.held = True
    in_flight = cluster.start(cluster.leader(GROUPS).serve(commit_request(2, topic="a"), 9))
    cluster.loop.run_ready()
    cluster.replicate(GROUPS, 2)
    cluster.kill(1, successor=2)
    cluster.loop.pass_ms(5_000)
    assert commit_error(in_flight.result()) == LOST
    response = call(cluster, fetch_request(), 9)
    assert response.groups[0].error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    cluster.elect(GROUPS, 3)
    cluster.release()
    cluster.loop.pass_ms(100)
    assert offset(cluster) == [1]


def lose_and_regain_between_two_images(cluster: Cluster) -> None:
    """Broker 1 sees only the last of three elections; in between broker 2 has led, and stored another offset."""
    assert commit(cluster, 1) == 0
    cluster.nodes[1].is_behind = True
    cluster.elect(GROUPS, 2)
    cluster.loop.pass_ms(100)
    assert commit(cluster, 2) == 0
    cluster.elect(GROUPS, 1)
    cluster.catch_up(1)
    cluster.loop.pass_ms(100)


def test_a_coordinator_that_did_not_notice_its_absence_loads_again(cluster: Cluster) -> None:
    lose_and_regain_between_two_images(cluster)
    assert offset(cluster) == [2]


def test_a_coordinator_that_does_not_load_again_is_caught(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted mistake: the same leader in a new epoch keeps its state."""
    on_delta = CoordinatorRuntime.on_delta

    def keep(self: Any, delta: MetadataDelta) -> None:
        for change in delta.partitions:
            context = self._contexts.get(change.tp.partition)
            if context is not None and change.new is not None and change.new.leader == self._config().node_id:
                context.epoch = change.new.leader_epoch
        on_delta(self, delta)

    monkeypatch.setattr(CoordinatorRuntime, "on_delta", keep)
    lose_and_regain_between_two_images(cluster)
    assert offset(cluster) == [1], "the former commit"


def test_offsets_of_a_transaction_are_committed_by_a_coordinator_on_another_broker(cluster: Cluster) -> None:
    """The group's broker adds its partition to the transaction, and gets the marker after its successor."""
    cluster.elect(TRANSACTIONS, 3)
    cluster.loop.pass_ms(10)
    producer = cluster.begin_transaction()
    identity = ProducerIdentity("t", *producer)
    assert transactional_commit(cluster, identity, 5) == 0
    assert offset(cluster) == []
    ended = cluster.start(cluster.leader(TRANSACTIONS).serve(end_request(identity), 5))
    cluster.kill(1, successor=2)
    cluster.loop.pass_ms(5_000)
    assert ended.result().error_code == 0
    assert offset(cluster) == [5]
    assert cluster.outcomes(GROUPS) == {GROUPS: {True}}


def test_an_unreachable_transaction_coordinator_is_an_error_to_retry(cluster: Cluster) -> None:
    cluster.elect(TRANSACTIONS, 3)
    cluster.loop.pass_ms(10)
    producer = ProducerIdentity("t", *cluster.begin_transaction())
    cluster.nodes[3].is_alive = False
    assert transactional_commit(cluster, producer, 5) == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    cluster.nodes[3].is_alive = True
    assert transactional_commit(cluster, producer, 5) == 0


def transactional_commit(cluster: Cluster, producer: ProducerIdentity, offset: int) -> int:
    committed = TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=offset, committed_metadata="")
    request = TxnOffsetCommitRequest(
        transactional_id=producer.transactional_id,
        group_id="g",
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        topics=[TxnOffsetCommitRequestTopic(name="a", partitions=[committed])],
    )
    return int(call(cluster, request, 5).topics[0].partitions[0].error_code)


def end_request(producer: ProducerIdentity) -> EndTxnRequest:
    return EndTxnRequest(
        transactional_id=producer.transactional_id,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        committed=True,
    )
