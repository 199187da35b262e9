"""DeleteRecords waits until the live followers have deleted the records, too."""

import asyncio

from protocol.errors import ErrorCode
from tests.unit.support.client import Client, batch
from tests.unit.support.replicated_partition import LONG_MS, ReplicatedPartition, only
from tests.unit.support.simulated_broker import Machine, broker_test


async def replicated(m: Machine) -> tuple[ReplicatedPartition, Client, Client]:
    client, admin = await m.client(), await m.client()
    await client.create_topic("t")
    for _ in range(5):
        await client.produce("t", batch(b"v"))
    t = ReplicatedPartition(m)
    t.lead([1, 2, 3])
    for replica in (2, 3):
        t.claim(replica, 5)
    return t, client, admin


@broker_test
async def test_the_response_waits_for_the_log_starts_of_the_followers(m: Machine) -> None:
    t, _, admin = await replicated(m)
    polls = [t.fetch(replica, 5, wait_ms=LONG_MS) for replica in (2, 3)]
    deleting = asyncio.ensure_future(admin.delete_records("t", 3))
    # The followers learn of it at once.
    for poll in polls:
        result = only(await poll)  # type: ignore[misc]
        assert result is not None
        assert result.log_start_offset == 3
    t.claim(2, 5, log_start=3)
    await asyncio.sleep(1)
    assert not deleting.done()
    t.claim(3, 5, log_start=3)
    assert await deleting == (0, 3)


@broker_test
async def test_a_follower_that_is_not_live_is_not_waited_for(m: Machine) -> None:
    t, _, admin = await replicated(m)
    t.claim(2, 5, log_start=0)
    deleting = asyncio.ensure_future(admin.delete_records("t", -1))
    await asyncio.sleep(1)
    t.claim(2, 5, log_start=5)
    await asyncio.sleep(1)
    assert not deleting.done()
    t.fence(3)
    assert await deleting == (0, 5)


@broker_test
async def test_a_follower_that_does_not_delete(m: Machine) -> None:
    t, _, admin = await replicated(m)
    code, low_watermark = await admin.delete_records("t", 3)
    assert (code, low_watermark) == (ErrorCode.REQUEST_TIMED_OUT, 0)
    # The leader has deleted the records, and the request succeeds when it is repeated later.
    assert t.partition.log.log_start_offset == 3
    for replica in (2, 3):
        t.claim(replica, 5, log_start=3)
    assert await admin.delete_records("t", 3) == (0, 3)


@broker_test
async def test_a_lost_leadership_ends_the_wait(m: Machine) -> None:
    t, _, admin = await replicated(m)
    deleting = asyncio.ensure_future(admin.delete_records("t", 3))
    await asyncio.sleep(1)
    t.follow(2)
    t.m.broker._assigned.resign()
    assert await deleting == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)


@broker_test
async def test_a_broker_that_stops_does_not_wait(m: Machine) -> None:
    _, _, admin = await replicated(m)
    deleting = asyncio.ensure_future(admin.delete_records("t", 3))
    await asyncio.sleep(1)
    started = m.loop.time()
    await m.stop()
    assert m.loop.time() - started < 5
    await asyncio.gather(deleting, return_exceptions=True)
