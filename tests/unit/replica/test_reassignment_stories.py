"""Partitions move between whole brokers: under load, while sessions end, and back again when that is cancelled."""

import asyncio

from kbroker.metadata.image import PartitionRegistration
from tests.unit.replica.test_cluster_stories import numbers_of, produce_until
from tests.unit.support.client import batch
from tests.unit.support.log_lab import content
from tests.unit.support.simulated_cluster import SimulatedCluster
from tests.unit.support.simulated_hosts import simulated


def directories(s: SimulatedCluster, node_id: int, topic: str = "t-0") -> list[str]:
    """Return the directories of a partition that are not about to be removed."""
    names = s.machines[node_id].disk.listdir("/data")
    return [name for name in names if name.startswith(topic) and not name.endswith("-delete")]


async def until_moved(s: SimulatedCluster, *target: int) -> PartitionRegistration:
    def is_complete() -> bool:
        # An image that was loaded during a change may lack the partition.
        partitions = [s.broker(node_id).services.metadata.partition("t", 0) for node_id in s.machines]
        return all(row is not None and row == partitions[0] and not row.is_reassigning for row in partitions)

    await s.until(is_complete, 120)
    registration = s.registration(1)
    assert registration.replicas == list(target)
    return registration


@simulated(SimulatedCluster, range(2))
async def test_a_partition_moves_under_load(s: SimulatedCluster) -> None:
    """The session of the leader or of the controller ends during each move."""
    await s.create([1, 2], min_insync_replicas="2")
    stopping = asyncio.Event()
    producing = asyncio.ensure_future(produce_until(s, stopping))
    for number, target in enumerate([[3, 1], [2, 3], [1, 2], [2, 1, 3], [3], [1, 3]]):
        await s.reassign(target)
        await asyncio.sleep(0.1 * number)
        victim = s.controller if number % 2 else max(s.registration(1).leader, 1)
        (session,) = s.service.sessions(f"b{victim}")
        s.service.expire(session)
        await until_moved(s, *target)
        await s.until(lambda: s.registration(1).leader > 0, 60)
        assert s.registration(1).leader in target
    stopping.set()
    acknowledged = await producing
    await s.until(lambda: not directories(s, 2), 60)
    await s.until(lambda: sorted(s.registration(1).isr) == [1, 3], 60)
    assert len(acknowledged) > 100
    for node_id in (1, 3):
        assert set(acknowledged) <= set(numbers_of(content(s.replica(node_id).log)))


@simulated(SimulatedCluster, range(1))
async def test_a_cancelled_reassignment_leaves_nothing(s: SimulatedCluster) -> None:
    await s.create([1, 2])
    await s.produce(1, batch(b"a"))
    await s.machines[3].stop()
    await s.until(lambda: 3 not in s.broker(1).services.metadata.brokers, 60)
    await s.reassign([3])
    assert s.registration(1).replicas == [3, 1, 2]
    await s.produce(1, batch(b"b"))
    await s.reassign(None)
    registration = s.registration(1)
    assert (registration.replicas, registration.isr, registration.leader) == ([1, 2], [1, 2], 1)
    await s.machines[3].start()
    await s.until(lambda: 3 in s.broker(1).services.metadata.brokers, 60)
    await s.produce(1, batch(b"c"))
    assert directories(s, 3) == []


@simulated(SimulatedCluster, range(1))
async def test_a_replica_is_added_and_removed_faster_than_logs_are(s: SimulatedCluster) -> None:
    await s.create([1, 2], min_insync_replicas="1")
    await s.produce(1, batch(b"a"))
    for _ in range(10):
        await s.reassign([1, 3])
        await s.reassign([1, 2])
        await s.reassign([2, 3])
        await s.reassign(None)
        await s.produce(s.registration(1).leader, batch(b"b"))
    await s.reassign([1, 3])
    await until_moved(s, 1, 3)
    await s.until(lambda: sorted(s.registration(1).isr) == [1, 3], 60)
    await s.until(lambda: not directories(s, 2), 60)
    assert content(s.replica(3).log) == content(s.replica(1).log)
