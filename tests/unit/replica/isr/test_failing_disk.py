"""A disk that fails under a leader, in a cluster of whole brokers."""

from tests.unit.support.client import batch
from tests.unit.support.simulated_cluster import SimulatedCluster
from tests.unit.support.simulated_hosts import simulated


@simulated(SimulatedCluster, range(2))
async def test_producers_go_on_with_another_leader(s: SimulatedCluster) -> None:
    await s.create([1, 2, 3], [1, 2, 3], min_insync_replicas="2")
    await s.produce(1, batch(b"a"))
    s.replica(1).log.health.mark_offline("sync failed: [Errno 5] Input/output error")
    await s.until(lambda: s.registration(2).leader == 2, 10)
    assert s.registration(2, index=1).leader == 1, "the log of the other partition works"
    await s.produce(2, batch(b"b"))
    assert s.registration(2).isr == [2, 3]
    await s.machines[1].stop()
    await s.machines[1].start()
    await s.until(lambda: sorted(s.registration(2).isr) == [1, 2, 3], 30)
    assert s.replica(1).log.log_end_offset == 2
