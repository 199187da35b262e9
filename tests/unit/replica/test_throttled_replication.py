"""Throttled replication (KIP-73) between the replicas of several brokers, in virtual time."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from kbroker.replica import replication_throttle
from kbroker.replica.fetch import partition_reads
from kbroker.replica.fetcher.replica_fetcher import FollowerThrottle
from kbroker.replica.replication_throttle import LeaderThrottle, should_leader_throttle
from protocol.fast.fetch import FetchResponse
from tests.unit.support.replica_cluster import ReplicaCluster, replica_test

MB = 1_000_000
VALUE = bytes(10_000)
# Small fetches, as the rate is measured in whole responses.
FETCHES = {"replica_fetch_max_bytes": "20000"}
LEADER = {"leader_replication_throttled_replicas": "0:1"}
FOLLOWER = {"follower_replication_throttled_replicas": "0:3"}


async def behind(c: ReplicaCluster, size: int, topic: dict[str, str], **brokers: str) -> None:
    """Let broker 3 be without `size` bytes of the records of 1 and 2, and outside the ISR."""
    await c.start(1, 2, 3, **FETCHES, **brokers)
    await c.create_topic(1, 2, 3, **topic)
    await c.kill(3)
    c.elect(1, isr=[1, 2])
    for _ in range(size // len(VALUE)):
        c.produce(1, VALUE)
    await c.until_equal(1, 2)
    # What was sent to broker 2 counts as well, until all windows have passed.
    await asyncio.sleep(12)


async def seconds_of(c: ReplicaCluster, event: Awaitable[object]) -> float:
    began = c.loop.time()
    await event
    return c.loop.time() - began


def set_rates(c: ReplicaCluster, rate: int) -> None:
    """Change the rates of all brokers at run time."""
    rates = {f"{side}.replication.throttled.rate": str(rate) for side in ("leader", "follower")}
    for node in c.nodes.values():
        node.config = node.config.with_dynamic({}, rates)


async def caught_up(c: ReplicaCluster) -> None:
    leader, follower = c.nodes[1], c.nodes[3]
    await c.until(lambda: follower.partition().log.log_end_offset == leader.partition().log.log_end_offset, seconds=100)


SIDES = pytest.mark.parametrize("side", [LEADER, FOLLOWER], ids=["leader", "follower"])


def on_each_side(test: Callable[[ReplicaCluster, dict[str, str]], Awaitable[None]]) -> Any:
    @SIDES
    def run(side: dict[str, str]) -> None:
        @replica_test
        async def of_side(c: ReplicaCluster) -> None:
            await test(c, side)

        of_side()

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


def with_rate(rate: int) -> dict[str, str]:
    return {f"{side}_replication_throttled_rate": str(rate) for side in ("leader", "follower")}


@on_each_side
async def test_a_replica_catches_up_at_the_rate(c: ReplicaCluster, side: dict[str, str]) -> None:
    await behind(c, 3 * MB, side, **with_rate(MB))
    await c.restart(3, **FETCHES, **with_rate(MB), replica_fetch_wait_max_ms="500")
    assert 1.9 <= await seconds_of(c, caught_up(c)) <= 3.2
    assert await c.until_equal(1, 2, 3)


@on_each_side
async def test_an_in_sync_replica_is_not_slowed(c: ReplicaCluster, side: dict[str, str]) -> None:
    """Its bytes count, so the replica that catches up waits all the longer."""
    await behind(c, 1 * MB, {**side, "leader_replication_throttled_replicas": "*"}, **with_rate(100_000))
    await c.restart(3, **FETCHES, **with_rate(100_000))
    slowest = 0.0
    for _ in range(20):
        slowest = max(slowest, await seconds_of(c, c.commit(1, VALUE * 5)))
    assert slowest < 0.01
    assert c.nodes[3].partition().log.log_end_offset < c.nodes[1].partition().log.log_end_offset - 50
    set_rates(c, 100 * MB)
    await c.until_equal(1, 2, 3)


@on_each_side
async def test_a_waiting_follower_sends_few_requests(c: ReplicaCluster, side: dict[str, str]) -> None:
    """Neither do appends to the partition complete its request."""
    await behind(c, 1 * MB, side, **with_rate(20_000))
    await c.restart(3, **FETCHES, **with_rate(20_000))
    await asyncio.sleep(1)
    before = c.fetches.get((1, 3), 0)
    for _ in range(100):
        await c.commit(1, b"v")
        await asyncio.sleep(0.05)
    # One a second for the bytes, and one for each wait of at most 500 ms.
    assert c.fetches[1, 3] - before <= 25


@on_each_side
async def test_a_changed_rate_applies_to_a_replica_that_waits(c: ReplicaCluster, side: dict[str, str]) -> None:
    await behind(c, 3 * MB, side, **with_rate(10_000))
    await c.restart(3, **FETCHES, **with_rate(10_000))
    await asyncio.sleep(3)
    assert c.nodes[3].partition().log.log_end_offset < 10
    set_rates(c, 100 * MB)
    assert await seconds_of(c, caught_up(c)) < 1.5


@on_each_side
async def test_a_removed_throttle_applies_to_a_replica_that_waits(c: ReplicaCluster, side: dict[str, str]) -> None:
    await behind(c, 1 * MB, side, **with_rate(10_000))
    await c.restart(3, **FETCHES, **with_rate(10_000))
    await asyncio.sleep(3)
    for node in c.nodes.values():
        node.image.topics["t"].configs.clear()
        node.assigned.update_configs({"t"})
    assert await seconds_of(c, caught_up(c)) < 1.5
    # Appends notify its session again.
    await asyncio.sleep(2)
    c.produce(1, b"v")
    assert await seconds_of(c, caught_up(c)) < 0.01


@on_each_side
async def test_a_batch_larger_than_the_quota_goes_through(c: ReplicaCluster, side: dict[str, str]) -> None:
    """Even at a rate of 0, one fetch goes through when all windows have passed."""
    await behind(c, 40_000, side, **with_rate(0))
    await c.restart(3, replica_fetch_max_bytes="100", **with_rate(0))
    assert 32.9 <= await seconds_of(c, caught_up(c)) <= 36


@on_each_side
async def test_other_topics_are_not_throttled(c: ReplicaCluster, side: dict[str, str]) -> None:
    await behind(c, 1 * MB, side, **with_rate(10_000))
    await c.restart(3, **FETCHES, **with_rate(10_000))
    await c.create_topic(1, 2, 3, name="other")
    await asyncio.sleep(1)
    slowest = 0.0
    for _ in range(20):
        slowest = max(slowest, await seconds_of(c, c.commit(1, VALUE, topic="other")))
        await asyncio.sleep(0.1)
    assert slowest < 0.01
    assert c.nodes[3].partition().log.log_end_offset < 20


@replica_test
async def test_producers_do_not_wait_for_a_throttled_replica_that_is_joining(c: ReplicaCluster) -> None:
    """A replica that was caught up recently holds the high watermark back, but not while it gets no records."""
    await c.start(1, 2, 3, **FETCHES, **with_rate(20_000))
    await c.create_topic(1, 2, 3, **LEADER)
    await c.commit(1, VALUE)
    # Not in the ISR any more, but still caught up: nothing has proposed to add it.
    partition = c.nodes[1].partition()
    partition.state.isr = [1, 2]
    partition.state.update_counted()
    for _ in range(10):
        await c.commit(1, VALUE * 4)
    assert await seconds_of(c, c.commit(1, VALUE)) < 0.01


def test_requests_do_not_look_at_the_partitions_that_are_withheld(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy partition in sync has many requests, and a thousand others may be throttled."""
    looks = []

    def counted(partition: Any, *arguments: Any) -> bool:
        looks.append(partition.tp)
        return should_leader_throttle(partition, *arguments)

    monkeypatch.setattr(replication_throttle, "should_leader_throttle", counted)

    @replica_test
    async def run(c: ReplicaCluster) -> None:
        await c.start(1, 3, **FETCHES, **with_rate(1_000))
        partitions = 20
        await c.create_topic(1, 3, partitions=partitions, leader_replication_throttled_replicas="*")
        await c.create_topic(1, 3, name="other")
        await c.kill(3)
        for index in range(partitions):
            c.elect(1, isr=[1], index=index)
            c.produce(1, VALUE, VALUE, index=index)
            c.produce(1, VALUE, VALUE, index=index)
        await c.restart(3, **FETCHES, **with_rate(1_000))
        await asyncio.sleep(1)
        looks.clear()
        before = c.fetches[1, 3]
        for _ in range(200):
            await c.commit(1, b"v", topic="other")
            await asyncio.sleep(0.01)
        assert c.fetches[1, 3] - before >= 200
        assert 0 < len(looks) <= 4 * partitions

    run()


def test_without_throttled_bytes_no_partition_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(FollowerThrottle, "before_request")
    monkeypatch.delattr(LeaderThrottle, "withholds")

    @replica_test
    async def run(c: ReplicaCluster) -> None:
        await c.replicate(1, 2, partitions=3)
        for _ in range(5):
            await c.commit(1, VALUE)
        await c.until_equal(1, 2)

    run()


@pytest.mark.parametrize("is_cold", [False, True], ids=["cached", "cold"])
def test_a_response_has_few_bytes_of_throttled_replicas(is_cold: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The in-sync partitions of the session would wait for them. Other records are not limited."""
    if is_cold:
        monkeypatch.setattr(partition_reads, "read_or_slice", lambda *_: None)
    sizes: list[tuple[int, int]] = []

    def record(response: FetchResponse) -> FetchResponse:
        throttled, others = 0, 0
        for key, results in response.topics:
            size = sum(len(result.records) for result in results)
            throttled, others = (throttled + size, others) if key == first_topic else (throttled, others + size)
        sizes.append((throttled, others))
        return response

    @replica_test
    async def run(c: ReplicaCluster) -> None:
        nonlocal first_topic
        await c.start(1, 3, **with_rate(10 * MB))
        await c.create_topic(1, 3, partitions=6, leader_replication_throttled_replicas="*")
        await c.create_topic(1, 3, name="other")
        first_topic = c.topics["t"].topic_id
        await c.kill(3)
        for topic, partitions in (("t", 6), ("other", 1)):
            for index in range(partitions):
                c.elect(1, isr=[1], index=index, topic=topic)
                for _ in range(50 if topic == "t" else 90):
                    c.produce(1, VALUE, index=index, topic=topic)
        await asyncio.sleep(12)
        c.change = record
        await c.restart(3, **with_rate(10 * MB))
        await c.until(lambda: sum(throttled for throttled, _ in sizes) > 3 * MB, seconds=10)
        limit = 10 * MB * replication_throttle.RESPONSE_MS // 1000
        assert max(throttled for throttled, _ in sizes) <= limit
        assert max(others for _, others in sizes) > 0.8 * MB, "not throttled"

    first_topic = b""
    run()
