"""Idempotency keys after a failover: the new leader rebuilds them from its log."""

import asyncio
from functools import partial

from kbroker.common import NO_LEADER
from protocol.errors import ErrorCode
from protocol.records.batch import build_batch
from tests.unit.support.client import Client
from tests.unit.support.simulated_cluster import SimulatedCluster
from tests.unit.support.simulated_hosts import simulated


async def offset_of(s: SimulatedCluster, seen_by: int, key: bytes, value: bytes) -> int:
    """Produce to the leader as a client does, which asks again when the leader has changed."""
    headers = ((b"IDEMPOTENCY_KEY", key),)
    while True:
        leader = s.registration(seen_by).leader
        records = build_batch([(now_ms(s), None, value, headers)])
        response = await s.client(leader, partial(Client.produce, topic="t", records=records))
        if response.error_code not in (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_ENOUGH_REPLICAS):
            assert response.error_code == 0, response
            return int(response.base_offset)
        await asyncio.sleep(0.1)


def now_ms(s: SimulatedCluster) -> int:
    return s.broker(s.controller).environment.clock.now_ms()


@simulated(SimulatedCluster, range(2))
async def test_a_new_leader_knows_the_keys_of_the_former_one(s: SimulatedCluster) -> None:
    configs = {"kbroker_dedup_window_ms": "600000", "min_insync_replicas": "2"}
    await s.create([3, 1, 2], **configs)
    assert await offset_of(s, 1, b"a", b"1") == 0
    assert await offset_of(s, 1, b"b", b"2") == 1
    s.machines[3].power_off()
    await s.until(lambda: s.registration(1).leader not in (NO_LEADER, 3), 60)
    assert await offset_of(s, 1, b"b", b"again") == 1
    assert await offset_of(s, 1, b"c", b"3") == 2
    s.machines[3].replace_disk()
    await s.machines[3].start()
    await s.until(lambda: sorted(s.registration(1).isr) == [1, 2, 3], 60)
    second = s.registration(1).leader
    assert s.replica(second).append_extension is not None
    assert s.replica(3).append_extension is None
    s.machines[second].power_off()
    other = 1 if second == 2 else 2
    await s.until(lambda: s.registration(other).leader not in (NO_LEADER, second), 60)
    for number, key in enumerate((b"a", b"b", b"c")):
        assert await offset_of(s, other, key, b"again") == number
    assert await offset_of(s, other, b"d", b"4") == 3
