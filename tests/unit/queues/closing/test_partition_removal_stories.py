"""The highest partitions of a topic are removed if they are empty: between whole brokers, also through a failover."""

import asyncio

import pytest

from kbroker.common import KafkaError
from kbroker.metadata.topics.topic_requests import NewPartitions
from protocol.errors import ErrorCode
from protocol.messages.k02_list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from protocol.messages.k10010_remove_partitions import RemovePartitionsRequest, RemovePartitionsResponse
from tests.unit.support.client import batch
from tests.unit.support.simulated_cluster import SimulatedCluster
from tests.unit.support.simulated_hosts import simulated

ASSIGNMENT = ([1, 2], [2, 3], [3, 1])
# An outcome of RemovePartitions.
REMOVED = 0


async def alter(s: SimulatedCluster, count: int, node_id: int = 1) -> RemovePartitionsResponse:
    request = RemovePartitionsRequest(topic_name="t", partition_count=count)
    response: RemovePartitionsResponse = await s.client(
        node_id, lambda client: client.request(request, 0, RemovePartitionsResponse)
    )
    return response


async def remove(s: SimulatedCluster, count: int, node_id: int = 1) -> tuple[int, str | None]:
    response = await alter(s, count, node_id)
    return response.error_code, response.error_message


def counts(s: SimulatedCluster) -> set[int]:
    """Return how many partitions the topic has, as the brokers' images have it."""
    return {len(s.broker(node_id).services.metadata.topics["t"].partitions) for node_id in s.machines}


def logs_of(s: SimulatedCluster, index: int) -> list[int]:
    """Return the brokers that have a log of a partition which is not about to be deleted."""
    return [
        node_id
        for node_id, machine in s.machines.items()
        if any(name == f"t-{index}" for name in machine.disk.listdir("/data"))
    ]


async def is_closing_nowhere(s: SimulatedCluster) -> None:
    def is_open() -> bool:
        topics = [s.broker(node_id).services.metadata.topics["t"] for node_id in s.machines]
        return not any(row.is_closing for topic in topics for row in topic.partitions)

    await s.until(is_open, 60)


@simulated(SimulatedCluster, range(2))
async def test_empty_partitions_are_removed_and_added_again(s: SimulatedCluster) -> None:
    """Immediately, if their topic cannot forward records."""
    await s.create(*ASSIGNMENT, cleanup_policy="compact")
    await s.produce(1, batch(b"kept", key=b"k"))
    epoch = s.registration(1, index=2).leader_epoch
    assert await remove(s, 1, node_id=2) == (0, None)
    await s.until(lambda: counts(s) == {1} and not logs_of(s, 1) and not logs_of(s, 2), 60)
    gone = await s.client(3, lambda client: client.produce("t", batch(b"x", key=b"k"), 2))
    assert gone.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    # librdkafka updates its metadata after this error only. The topic has never had the partition 3.
    offsets = [ListOffsetsPartition(partition_index=index, timestamp=-2) for index in (2, 3)]
    topics = [ListOffsetsTopic(name="t", partitions=offsets)]
    listed = await s.client(
        3, lambda client: client.request(ListOffsetsRequest(replica_id=-1, topics=topics), 7, ListOffsetsResponse)
    )
    codes = [row.error_code for row in listed.topics[0].partitions]
    assert codes == [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    await s.produce(1, batch(b"still", key=b"k"))
    # What members commit for them is acknowledged, but not for numbers that the topic has never had.
    topic = s.broker(2).services.metadata.topics["t"]
    assert [topic.is_removed(index) for index in (0, 1, 2, 3, 1_000_000)] == [False, True, True, False, False]

    controller = s.machines[s.controller]
    assert controller.services is not None
    new = NewPartitions("t", 3, [[2, 3], [3, 1]])
    (result,) = await controller.loop.run(controller.services.controller.topics.create_partitions([new], False))
    assert result.error is None
    await s.until(lambda: counts(s) == {3} and logs_of(s, 2) == [1, 3], 60)
    # Clients ignore metadata with an older leader epoch than they know.
    assert s.registration(1, index=2).leader_epoch > epoch
    await s.until(lambda: s.broker(3).services.replicas.get("t", 2) is not None, 10)
    await s.until(lambda: s.replica(3, index=2).is_leader, 10)
    await s.produce(3, batch(b"new", key=b"k"), partition=2)
    assert s.replica(3, index=2).log.log_end_offset == 1


@simulated(SimulatedCluster, range(2))
async def test_partitions_with_records_remain_and_accept_records_again(s: SimulatedCluster) -> None:
    """Records of compacted topics cannot be forwarded (queues/closing/)."""
    await s.create(*ASSIGNMENT, cleanup_policy="compact")
    await s.produce(3, batch(b"a", key=b"k"), partition=2)
    code, message = await remove(s, 1)
    assert code == ErrorCode.INVALID_CONFIG
    assert message is not None
    assert "has cleanup.policy=compact. These partitions have records: 2 (offsets 0 to 0)." in message
    await is_closing_nowhere(s)
    assert counts(s) == {3}
    await s.produce(3, batch(b"b", key=b"k"), partition=2)
    await s.produce(2, batch(b"c", key=b"k"), partition=1)


@simulated(SimulatedCluster, range(1))
async def test_refused_removals(s: SimulatedCluster) -> None:
    await s.create(*ASSIGNMENT)
    assert await remove(s, 0) == (ErrorCode.INVALID_PARTITIONS, "A topic keeps at least one partition.")
    assert await remove(s, 3) == (ErrorCode.INVALID_PARTITIONS, "Topic already has 3 partition(s).")
    for node_id in (2, 3):
        await s.machines[node_id].stop()
    await s.until(lambda: s.registration(1, index=1).leader == -1, 60)
    assert await remove(s, 1) == (ErrorCode.LEADER_NOT_AVAILABLE, "Partition 1 has no leader.")
    assert counts_of(s, 1) == 3


def counts_of(s: SimulatedCluster, node_id: int) -> int:
    return len(s.broker(node_id).services.metadata.topics["t"].partitions)


@simulated(SimulatedCluster, range(4))
async def test_no_acknowledged_record_is_removed(s: SimulatedCluster) -> None:
    """A producer begins while the partitions are being removed: its record or the partition is refused."""
    await s.create(*ASSIGNMENT, cleanup_policy="compact")
    removing = asyncio.ensure_future(alter(s, 2))
    acknowledged = 0
    while not removing.done():
        response = await s.client(3, lambda client: client.produce("t", batch(b"a", key=b"k"), 2))
        acknowledged += response.error_code == 0
    response = await removing
    if response.error_code == 0:
        assert (response.outcome, acknowledged) == (REMOVED, 0)
    else:
        assert response.error_code == ErrorCode.INVALID_CONFIG
        await is_closing_nowhere(s)
        assert s.replica(3, index=2).log.log_end_offset >= acknowledged > 0


@simulated(SimulatedCluster, range(2))
async def test_a_partition_is_removed_only_in_the_leader_epoch_that_was_looked_at(s: SimulatedCluster) -> None:
    """The leaders change after they have reported that the partitions are empty."""
    await s.create(*ASSIGNMENT)
    machine = s.machines[s.controller]
    assert machine.services is not None
    removal = machine.services.partition_removal
    closing = await machine.loop.run(removal.closing.close("t", 1))
    victim = next(node_id for node_id in s.machines if node_id != s.controller)
    (session,) = s.service.sessions(f"b{victim}")
    s.service.expire(session)
    epochs = {index: epoch for index, (_, epoch) in closing.leaders.items()}
    await s.until(lambda: any(s.registration(1, index=i).leader_epoch > epochs[i] for i in epochs), 60)
    with pytest.raises(KafkaError) as raised:
        await machine.loop.run(removal.closing.remove(closing))
    assert raised.value.code == ErrorCode.REQUEST_TIMED_OUT
    await machine.loop.run(removal.closing.reopen(closing.topic_id))
    await is_closing_nowhere(s)
    assert counts(s) == {3}


@simulated(SimulatedCluster, range(2))
async def test_the_next_controller_reopens_what_its_predecessor_has_closed(s: SimulatedCluster) -> None:
    await s.create(*ASSIGNMENT)
    former = s.controller
    machine = s.machines[former]
    assert machine.services is not None
    await machine.loop.run(machine.services.partition_removal.closing.close("t", 1))
    await s.until(lambda: s.replica(3, index=2).is_closing, 10)
    refused = await s.client(3, lambda client: client.produce("t", batch(b"x"), 2))
    assert refused.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    (session,) = s.service.sessions(f"b{former}")
    s.service.expire(session)
    await is_closing_nowhere(s)
    leader = s.registration(1, index=2).leader
    assert leader > 0
    await s.until(lambda: s.replica(leader, index=2).is_leader, 60)
    await s.produce(leader, batch(b"y"), partition=2)


@simulated(SimulatedCluster, range(2))
async def test_producers_wait_until_it_is_decided_whether_partitions_are_removed(s: SimulatedCluster) -> None:
    """An error would be retried, but KafkaJS changes batches of the same request that are stored already."""
    await s.create(*ASSIGNMENT)
    machine = s.machines[s.controller]
    assert machine.services is not None
    removal = machine.services.partition_removal

    async def produce() -> ErrorCode:
        response = await s.client(3, lambda client: client.produce("t", batch(b"x"), 2))
        return ErrorCode(response.error_code)

    closing = await machine.loop.run(removal.closing.close("t", 1))
    await s.until(lambda: s.replica(3, index=2).is_closing, 10)
    producing = asyncio.ensure_future(produce())
    await asyncio.sleep(1)
    assert not producing.done()
    await machine.loop.run(removal.closing.reopen(closing.topic_id))
    assert await producing == ErrorCode.NONE
    assert s.replica(3, index=2).log.log_end_offset == 1

    # The partition is closed for too long; then it is gone.
    await s.client(3, lambda client: client.delete_records("t", 1, 2))
    closing = await machine.loop.run(removal.closing.close("t", 1))
    await s.until(lambda: s.replica(3, index=2).is_closing, 10)
    assert await produce() == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert not s.replica(3, index=2)._closing_listeners
    producing = asyncio.ensure_future(produce())
    await asyncio.sleep(1)
    await machine.loop.run(removal.closing.remove(closing))
    assert await producing == ErrorCode.NOT_LEADER_OR_FOLLOWER
