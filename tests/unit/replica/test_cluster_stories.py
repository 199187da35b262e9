"""Whole brokers of a cluster: leadership flaps, sessions end silently, a formerly compacted log loses its power."""

import asyncio
from itertools import pairwise

from kbroker.common import NO_LEADER
from protocol.errors import ErrorCode
from protocol.records.batch import iter_headers
from tests.unit.support.client import batch
from tests.unit.support.log_lab import content
from tests.unit.support.simulated_cluster import SimulatedCluster
from tests.unit.support.simulated_hosts import simulated

KEYS = 5


async def produce_until(s: SimulatedCluster, stopping: asyncio.Event) -> list[int]:
    """Produce numbers with acks=all, each once, to the current leader. Returns those that were acknowledged."""
    acknowledged, number = [], 0
    while not stopping.is_set():
        number += 1
        leader = s.registration(1).leader
        if leader == NO_LEADER:
            await asyncio.sleep(0.01)
            continue
        record = batch(b"%d" % number)
        response = await s.client(leader, lambda client, r=record: client.produce("t", r, timeout_ms=2_000))
        if response.error_code == ErrorCode.NONE:
            acknowledged.append(number)
        await asyncio.sleep(0.005)
    return acknowledged


def key_of(number: int) -> bytes:
    """Most keys come again, so that compaction leaves gaps between the others."""
    return b"once%d" % number if number % 7 == 0 else b"key%d" % (number % KEYS)


async def until_equal(s: SimulatedCluster) -> bytes:
    """Wait until all replicas have the same bytes, and return them."""

    def are_equal() -> bool:
        logs = [s.replica(node_id).log for node_id in s.machines]
        return len({log.log_end_offset for log in logs}) == 1 and len({content(log) for log in logs}) == 1

    await s.until(are_equal, 60)
    return content(s.replica(1).log)


def numbers_of(data: bytes) -> list[int]:
    """Return the values of a log of batches with one record each."""
    values = []
    for position, header in iter_headers(memoryview(data)):
        record = data[position : position + header.size]
        values.append(int(record[record.rindex(b"k") + 2 : -1]))
    return values


@simulated(SimulatedCluster, range(1))
async def test_leadership_flaps_under_load(s: SimulatedCluster) -> None:
    """Sessions expire one after another: each is a new broker epoch, each leader starts without the claims of before.

    The controller is among those that lose their sessions. The brokers learn of it only from the service.
    """
    await s.create([1, 2, 3], min_insync_replicas="2")
    stopping = asyncio.Event()
    producing = asyncio.ensure_future(produce_until(s, stopping))
    expiries = 9
    first_epoch = max(s.broker_epochs())
    for count in range(1, expiries + 1):
        await s.until(lambda: s.registration(1).leader != NO_LEADER, 30)
        leader = s.registration(1).leader
        (session,) = s.service.sessions(f"b{leader}")
        s.service.expire(session)
        await s.until(lambda count=count: max(s.broker_epochs()) >= first_epoch + count, 30)
        await asyncio.sleep(0.5)
    stopping.set()
    acknowledged = await producing
    await s.until(lambda: sorted(s.registration(1).isr) == [1, 2, 3], 60)
    assert len(s.broker_epochs()) == 3
    assert max(s.broker_epochs()) == first_epoch + expiries, "an epoch for each expiry, and none besides"
    assert s.registration(1).leader_epoch >= expiries
    stored = numbers_of(await until_equal(s))
    assert stored == sorted(set(stored)), "in order, and nothing twice"
    assert set(acknowledged) <= set(stored)
    assert len(acknowledged) > 50


@simulated(SimulatedCluster, range(1))
async def test_a_formerly_compacted_log_keeps_its_gaps_through_a_power_cut(s: SimulatedCluster) -> None:
    """A follower copies a compacted log, whose gaps are then in its active segment. Recovery must not cut at a gap."""
    await s.create(
        [1, 2, 3], cleanup_policy="compact", min_cleanable_dirty_ratio="0", max_compaction_lag_ms="500",
        internal_segment_bytes="2000",
    )  # fmt: skip
    for number in range(60):
        await s.produce(1, batch(b"%d" % number, key=key_of(number)))
    await s.until(lambda: len(list(iter_headers(memoryview(content(s.replica(1).log))))) < 30, 120)
    s.machines[3].power_off()
    s.machines[3].replace_disk()
    await s.machines[3].start()
    leader = s.replica(1).log
    await s.until(lambda: s.replica(3).log.log_end_offset == leader.log_end_offset, 60)
    copied = s.replica(3).log
    offsets = [header.base_offset for _, header in iter_headers(memoryview(content(copied)))]
    assert any(later - earlier > 1 for earlier, later in pairwise(offsets)), "there are gaps"
    await s.alter_topic("t", {"cleanup.policy": "delete"})
    await s.until(lambda: not s.replica(3).log.config.is_compacted, 10)
    for number in range(60, 70):
        await s.produce(1, batch(b"%d" % number, key=key_of(number)))
    # First without a power loss: the page cache has everything, so recovery must keep everything.
    end_offset = s.replica(3).log.log_end_offset
    for end in (s.machines[3].kill, s.machines[3].power_off):
        end()
        before = content(leader)
        # Nothing is fetched before the test has seen what recovery has kept.
        for peer in ("b1", "b2"):
            s.loop.network.faults.partition("b3", peer)
        await s.machines[3].start()
        kept = s.replica(3).log
        if end == s.machines[3].kill:
            assert kept.log_end_offset == end_offset
        s.loop.network.faults.heal_all()
        await s.until(lambda: s.replica(3).log.log_end_offset == leader.log_end_offset, 60)
        assert content(s.replica(3).log) == content(leader) == before
