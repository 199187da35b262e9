"""A controlled shutdown: other brokers lead, and Metadata no longer names the broker, before it stops."""

import asyncio

from tests.unit.support.simulated_cluster import SimulatedCluster
from tests.unit.support.simulated_hosts import simulated


async def leader_and_lagging_broker(s: SimulatedCluster) -> tuple[int, int]:
    """Create a topic, and return its leader and another broker, which has its session, but learns of no change."""
    leader = s.controller % 3 + 1
    other, third = (node_id for node_id in s.machines if node_id != leader)
    await s.create([leader, other, third])
    lagging = third if s.controller != third else other
    s.service.cut(f"b{lagging}", requests=False)
    return leader, lagging


@simulated(SimulatedCluster, range(2))
async def test_a_stop_waits_until_the_other_brokers_know_of_the_new_leaders(s: SimulatedCluster) -> None:
    """A client that asks a broker with the former image would connect to a broker that is gone."""
    leader, lagging = await leader_and_lagging_broker(s)
    stopping = asyncio.ensure_future(s.machines[leader].stop())
    await asyncio.sleep(1)
    assert not stopping.done()
    assert s.registration(s.controller).leader != leader
    assert s.registration(lagging).leader == leader
    s.service.heal(f"b{lagging}")
    await stopping
    assert s.registration(lagging).leader != leader


@simulated(SimulatedCluster, range(2))
async def test_a_stop_does_not_wait_for_a_broker_that_learns_nothing_for_long(s: SimulatedCluster) -> None:
    leader, _ = await leader_and_lagging_broker(s)
    before = s.loop.time()
    await s.machines[leader].stop()
    assert s.loop.time() - before < 6
