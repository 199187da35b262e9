"""Followers have the bytes of their leaders, through elections, crashes and failures."""

import asyncio

from protocol.errors import ErrorCode
from tests.unit.support.replica_cluster import ReplicaCluster, offsets, replica_test


@replica_test
async def test_followers_copy_the_log_and_learn_the_high_watermark(c: ReplicaCluster) -> None:
    await c.start(1, 2, 3)
    await c.create_topic(1, 2, 3)
    produced = [c.produce(1, b"%d" % n) for n in range(5)]
    assert produced[0].code is None
    await c.until(lambda: [batch.code for batch in produced] == [0] * 5)
    assert offsets(await c.until_equal(1, 2, 3)) == [(n, 1) for n in range(5)]
    await c.until(lambda: all(node.partition().high_watermark == 5 for node in c.nodes.values()))


@replica_test
async def test_an_acknowledged_batch_waits_for_every_replica(c: ReplicaCluster) -> None:
    await c.start(1, 2, 3)
    await c.create_topic(1, 2, 3)
    await c.until(lambda: c.fetches.get((1, 3)))
    c.cut.add((1, 3))
    produced, unacknowledged = c.produce(1, b"a"), c.produce(1, b"b", acks=1)
    assert unacknowledged.code == 0
    await asyncio.sleep(5)
    assert (produced.code, c.nodes[2].partition().log.log_end_offset) == (None, 2)
    c.cut.clear()
    await c.until(lambda: produced.code == 0)


@replica_test
async def test_a_new_leader_continues(c: ReplicaCluster) -> None:
    await c.start(1, 2, 3)
    await c.create_topic(1, 2, 3)
    first = c.produce(1, b"a")
    await c.until(lambda: first.code == 0)
    c.elect(2)
    second = c.produce(2, b"b")
    await c.until(lambda: second.code == 0)
    assert c.produce(1, b"c").code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert offsets(await c.until_equal(1, 2, 3)) == [(0, 1), (1, 2)]
