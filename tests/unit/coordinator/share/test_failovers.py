"""The state of share partitions over three brokers: their leaders and coordinators fail at every step."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from kbroker.common import KafkaError
from kbroker.coordinator.share.persister import RETRY_S
from kbroker.coordinator.share.share_partition_state import (
    PersistedState,
    SharePartitionKey,
    StateBatch,
    StateSummary,
    StateWrite,
)
from protocol.errors import ErrorCode
from tests.unit.support.coordinator_cluster import SHARES, A, B, Cluster
from tests.unit.support.share_coordinator import change, outcome

AVAILABLE, ACKNOWLEDGED = 0, 2
RECORDS = 12


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    cluster = Cluster()
    yield cluster
    cluster.close()


def key_of(cluster: Cluster, tp: Any = A, group: str = "g") -> SharePartitionKey:
    return SharePartitionKey(group, cluster.topic_id(tp), 0)


def acknowledged(number: int, leader: int) -> StateWrite:
    """Return the write of a leader that has delivered a record and those after it, and got one acknowledged."""
    batches = StateBatch(number, number, ACKNOWLEDGED, 1), StateBatch(number + 1, RECORDS, AVAILABLE, 1)
    return StateWrite(0, leader, number, 1, batches)


def test_calls_reach_the_coordinator_from_any_broker_and_share_requests(cluster: Cluster):
    requests = []
    peers = cluster.nodes[2].persister._peers
    assert peers is not None
    send = peers.request

    async def request(broker_id: int, request: Any, version: int, **options: Any) -> Any:
        requests.append((type(request).__name__, request.group_id, [len(topic.partitions) for topic in request.topics]))
        return await send(broker_id, request, version, **options)

    peers.request = request  # type: ignore[method-assign,assignment]
    keys = key_of(cluster), key_of(cluster, B), key_of(cluster, group="h")
    tasks = [cluster.start(cluster.nodes[2].persister.initialize(key, 0, 5)) for key in keys]
    cluster.loop.pass_ms(20)
    assert [outcome(task) for task in tasks] == [None] * 3
    assert requests == [
        ("InitializeShareGroupStateRequest", "g", [1, 1]),
        ("InitializeShareGroupStateRequest", "h", [1]),
    ]
    persister = cluster.nodes[1].persister
    state = cluster.start(persister.read(keys[0], 3))
    written = cluster.start(cluster.nodes[3].persister.write(keys[0], change((5, 6, ACKNOWLEDGED, 1), leader=3)))
    old = cluster.start(cluster.nodes[3].persister.write(keys[0], change((7, 7, ACKNOWLEDGED, 1), leader=2)))
    cluster.loop.pass_ms(20)
    summary = cluster.start(cluster.nodes[3].persister.read_summary(keys[0]))
    deleted = cluster.start(cluster.nodes[2].persister.delete(keys[1]))
    cluster.loop.pass_ms(20)
    assert outcome(state) == PersistedState(0, 5, ())
    assert (outcome(written), outcome(old)) == (None, ErrorCode.FENCED_LEADER_EPOCH)
    assert outcome(summary) == StateSummary(0, 3, 5, 0)
    assert outcome(deleted) is None


def test_a_call_waits_for_a_coordinator_but_not_for_a_deleted_topic(cluster: Cluster):
    key = key_of(cluster)
    cluster.kill(1, 1)
    waiting = cluster.start(cluster.nodes[2].persister.initialize(key, 0, 0))
    cluster.loop.pass_ms(500)
    assert not waiting.done()
    cluster.elect(SHARES, 3)
    cluster.loop.pass_ms(2000)
    assert outcome(waiting) is None
    unknown = cluster.start(cluster.nodes[2].persister.initialize(SharePartitionKey("g", b"?" * 16, 0), 0, 0))
    cluster.loop.pass_ms(20)
    assert outcome(unknown) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    cluster.kill(3, 3)
    failing = cluster.start(cluster.nodes[2].persister.initialize(key, 0, 0))
    cluster.loop.pass_ms(int(RETRY_S * 1000) + 1000)
    assert outcome(failing) is ErrorCode.NETWORK_EXCEPTION


async def consume(cluster: Cluster, key: SharePartitionKey) -> None:
    """Acknowledge all records one by one. The share partition moves to another broker after each third record."""
    leader_epoch = 0
    await cluster.nodes[2].persister.initialize(key, 0, 0)
    for number in range(RECORDS):
        persister = cluster.nodes[2 + number % 2].persister
        if number % 3 == 0:
            leader_epoch += 1
            state = await persister.read(key, leader_epoch)
            acks = {batch.last for batch in state.batches if batch.state == ACKNOWLEDGED}
            assert state.start_offset == max(number - 1, 0), "an acknowledged record is lost, or one is skipped"
            assert acks == ({number - 1} if number else set())
        await persister.write(key, acknowledged(number, leader_epoch))
        with pytest.raises(KafkaError) as raised:
            await persister.write(key, acknowledged(RECORDS, leader_epoch - 1))
        assert raised.value.code is ErrorCode.FENCED_LEADER_EPOCH


@pytest.mark.parametrize("step", range(0, 60, 3))
@pytest.mark.parametrize("updates", [1, 4])
def test_nothing_that_is_acknowledged_is_lost_when_the_coordinator_fails_at_any_step(
    cluster: Cluster, step: int, updates: int
):
    for node in cluster.nodes.values():
        node.services.config.share_coordinator_snapshot_update_records_per_snapshot = updates
    key = key_of(cluster)
    consuming = cluster.start(consume(cluster, key))
    for failure in range(3):
        for _ in range(step):
            cluster.loop.run_until_complete(asyncio.sleep(0.0005))
        old = cluster.partition(SHARES).leader
        for node in cluster.nodes.values():
            for context in node.share_states.runtime.contexts():
                if context.tp == SHARES and cluster.is_leader(node.id, SHARES):
                    cluster.loop.run_until_complete(node.share_states.prune())
        cluster.kill(old, old % 3 + 1) if failure == 1 else cluster.elect(SHARES, old % 3 + 1)
        if failure == 1:
            cluster.loop.pass_ms(30)
            cluster.restart(old)
    cluster.loop.pass_ms(10_000)
    assert outcome(consuming) is None
    shard = cluster.leader(SHARES).share_states.runtime.contexts()[0].shard
    assert shard.partitions[key].state.start_offset == RECORDS - 1


def test_an_initialization_is_not_repeated_if_its_group_coordinator_was_replaced(cluster: Cluster):
    cluster.kill(1, 1)
    key = key_of(cluster)
    calling = cluster.start(cluster.nodes[2].persister.initialize(key, 0, 0, may_repeat=lambda: False))
    cluster.loop.pass_ms(500)
    assert outcome(calling) is ErrorCode.NETWORK_EXCEPTION
