"""Replication throttles of whole brokers: a replica catches up at the rate, the others are not slowed."""

import asyncio

from kbroker.config.config_def import ConfigResourceType
from tests.unit.support.client import batch
from tests.unit.support.simulated_cluster import SimulatedCluster
from tests.unit.support.simulated_hosts import simulated

MB = 1_000_000
BATCH_BYTES = 20_000
# The rate counts what was sent within this time.
WINDOWS_S = 11
SIDES = ("leader", "follower")


class ThrottledCluster(SimulatedCluster):
    """Fetches are small, because a rate is measured in whole responses."""

    def configs(self, node_id: int) -> dict[str, str]:
        return super().configs(node_id) | {"replica.fetch.max.bytes": "50000", "replica.lag.time.max.ms": "3000"}

    async def set_rate(self, rate: int) -> None:
        """Throttle all replicas of "t" on both sides."""
        controller = self.machines[self.controller]
        assert controller.services is not None
        rates = {f"{side}.replication.throttled.rate": str(rate) for side in SIDES}
        for node_id in self.machines:
            altering = controller.services.controller.alter_configs(ConfigResourceType.BROKER, str(node_id), rates)
            await controller.loop.run(altering)

    async def restart_empty(self, node_id: int) -> None:
        self.machines[node_id].replace_disk()
        await self.machines[node_id].start()
        await self.until(lambda: self.machines[node_id].services is not None)

    @property
    def isr(self) -> list[int]:
        return sorted(self.registration(1).isr)

    async def until_caught_up(self) -> float:
        """Wait until broker 3 has joined the ISR. Returns the seconds."""
        began = self.loop.time()
        await self.until(lambda: self.isr == [1, 2, 3])
        return self.loop.time() - began


async def lose_a_disk(s: ThrottledCluster, size: int) -> None:
    """Let broker 3 lose a topic of `size` bytes, all replicas of which are throttled."""
    await s.create(
        [1, 2, 3], min_insync_replicas="2", **{f"{side}_replication_throttled_replicas": "*" for side in SIDES}
    )
    s.machines[3].power_off()
    for _ in range(size // BATCH_BYTES):
        await s.produce(1, batch(bytes(BATCH_BYTES)))
    await s.until(lambda: s.isr == [1, 2])
    # What broker 2 has fetched counts, too.
    await asyncio.sleep(WINDOWS_S)


@simulated(ThrottledCluster, range(1))
async def test_a_lost_replica_catches_up_at_the_rate(s: ThrottledCluster) -> None:
    await lose_a_disk(s, 3 * MB)
    await s.set_rate(MB)
    await s.restart_empty(3)
    assert 1.9 <= await s.until_caught_up() <= 3.5


@simulated(ThrottledCluster, range(1))
async def test_a_throttle_neither_slows_in_sync_replicas_nor_removes_them(s: ThrottledCluster) -> None:
    """The throttle leaves broker 3 behind for longer than replica.lag.time.max.ms. Then the rate is raised."""
    await lose_a_disk(s, 1 * MB)
    await s.set_rate(10_000)
    await s.restart_empty(3)
    slowest = 0.0
    for _ in range(50):
        began = s.loop.time()
        await s.produce(1, batch(bytes(BATCH_BYTES)))
        slowest = max(slowest, s.loop.time() - began)
        assert s.isr == [1, 2]
        await asyncio.sleep(0.1)
    assert slowest < 0.1
    assert s.replica(3).log.log_end_offset < 20
    await s.set_rate(100 * MB)
    assert await s.until_caught_up() < 2
    shrinks = s.broker(1).services.replicas.isr_manager.shrinks
    # In sync again, it remains so under a throttle of which it uses far more.
    await s.set_rate(1)
    for _ in range(50):
        await s.produce(1, batch(bytes(BATCH_BYTES)))
        await asyncio.sleep(0.1)
    assert s.isr == [1, 2, 3]
    assert s.broker(1).services.replicas.isr_manager.shrinks == shrinks
