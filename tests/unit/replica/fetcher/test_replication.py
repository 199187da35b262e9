"""Followers have the bytes of their leaders, through elections, crashes and failures."""

import asyncio
from dataclasses import replace

import pytest

from kbroker.replica.fetch import partition_reads
from kbroker.replica.partition import Partition
from protocol.errors import ErrorCode
from protocol.fast.fetch import FetchResponse
from tests.unit.support.deletion import delete_records
from tests.unit.support.replica_cluster import ReplicaCluster, offsets, replica_test


@replica_test
async def test_followers_copy_the_log_and_learn_the_high_watermark(c: ReplicaCluster) -> None:
    await c.replicate(1, 2, 3)
    produced = [c.produce(1, b"%d" % n) for n in range(5)]
    assert produced[0].code is None
    await c.until(lambda: [batch.code for batch in produced] == [0] * 5)
    assert offsets(await c.until_equal(1, 2, 3)) == [(n, 1) for n in range(5)]
    await c.until(lambda: all(node.partition().high_watermark == 5 for node in c.nodes.values()))


@replica_test
async def test_an_acknowledged_batch_waits_for_every_replica(c: ReplicaCluster) -> None:
    await c.replicate(1, 2, 3)
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
    await c.replicate(1, 2, 3)
    await c.commit(1, b"a")
    c.elect(2)
    await c.commit(2, b"b")
    assert c.produce(1, b"c").code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert offsets(await c.until_equal(1, 2, 3)) == [(0, 1), (1, 2)]


@replica_test
async def test_a_follower_below_the_start_of_the_leaders_log(c: ReplicaCluster) -> None:
    await c.replicate(1, 2)
    await c.commit(1, b"a", b"b", b"c")
    await c.kill(2)
    c.elect(1, isr=[1])
    for _ in range(4):
        c.produce(1, b"d", b"e", b"f")
    # The leader's log then starts in the middle of a batch.
    await delete_records(c.nodes[1].replicas, c.nodes[1].partition(), 10)
    node = await c.restart(2)
    await c.until(lambda: node.partition().log.log_end_offset == 15)
    assert node.partition().log.log_start_offset == 10
    assert offsets(node.content()) == offsets(c.nodes[1].content())


@replica_test
async def test_a_follower_adopts_the_start_of_the_leaders_log(c: ReplicaCluster) -> None:
    await c.replicate(1, 2)
    for _ in range(3):
        c.produce(1, b"a")
    await c.until(lambda: c.nodes[2].partition().high_watermark == 3)
    await delete_records(c.nodes[1].replicas, c.nodes[1].partition(), 2)
    c.produce(1, b"b")
    await c.until(lambda: c.nodes[2].partition().log.log_start_offset == 2)


@replica_test
async def test_the_log_of_an_unclean_leader_is_shorter(c: ReplicaCluster) -> None:
    await c.replicate(1, 2)
    await c.commit(1, b"a")
    c.cut.add((1, 2))
    c.elect(1, isr=[1])
    for _ in range(3):
        assert c.produce(1, b"lost").code == 0
    await c.kill(1)
    c.elect(2, isr=[2])
    assert c.produce(2, b"b").code == 0
    await c.restart(1)
    assert offsets(await c.until_equal(2, 1)) == [(0, 1), (1, 3)]
    assert c.nodes[1].partition().high_watermark <= 2


@replica_test
async def test_a_leader_that_lost_its_disk_truncates_its_followers(c: ReplicaCluster) -> None:
    await c.replicate(1, 2)
    await c.commit(1, b"a")
    await c.restart(1, empty=True)
    c.elect(1, isr=[1])
    assert await c.until_equal(1, 2) == b""


@replica_test
async def test_a_topic_that_is_created_again(c: ReplicaCluster) -> None:
    await c.start(1, 2)
    for value in (b"old", b"new"):
        await c.create_topic(1, 2)
        produced = c.produce(1, value)
        await c.until(lambda produced=produced: produced.code == 0)  # type: ignore[misc]
        data = await c.until_equal(1, 2)
        assert (value in data, offsets(data)) == (True, [(0, 1)])
        await c.delete_topic()
        assert all(node.replicas.partitions == {} for node in c.nodes.values())


@replica_test
async def test_a_full_disk_of_a_follower(c: ReplicaCluster) -> None:
    await c.replicate(1, 2)
    await c.commit(1, b"a")
    disk = c.nodes[2].disk
    disk.capacity = disk.used + 100
    second = c.produce(1, bytes(1000))
    await asyncio.sleep(5)
    assert (second.code, c.nodes[2].partition().log.log_end_offset) == (None, 1)
    disk.capacity = None
    assert await c.nodes[2].environment.offload(c.nodes[2].partition().log.durability.probe_blocking)
    c.nodes[2].partition().log.resume()
    await c.until(lambda: second.code == 0)
    await c.until_equal(1, 2)


@replica_test
async def test_a_failed_disk_of_a_follower_does_not_stop_its_other_partitions(c: ReplicaCluster) -> None:
    await c.replicate(1, 2, partitions=2)
    c.nodes[2].partition(0).log.health.mark_offline("sync failed")
    produced = [c.produce(1, b"a", index=index) for index in range(2)]
    await c.until(lambda: produced[1].code == 0)
    fetches = c.fetches[1, 2]
    await asyncio.sleep(20)
    # The failed partition is not fetched again and again.
    assert c.fetches[1, 2] - fetches < 45


@replica_test
async def test_corrupt_batches_are_not_appended_and_do_not_spread(c: ReplicaCluster) -> None:
    await c.replicate(1, 2)
    await c.commit(1, b"a")
    damaged = 0

    def damage(response: FetchResponse) -> FetchResponse:
        nonlocal damaged
        for _, results in response.topics:
            for result in results:
                if result.records:
                    records = bytearray(result.records)
                    records[-1] ^= 1
                    result.records = records
                    damaged += 1
        return response

    c.change = damage
    second = c.produce(1, b"b")
    await asyncio.sleep(2)
    assert (second.code, offsets(c.nodes[2].content())) == (None, [(0, 1)])
    assert 2 < damaged < 20
    c.change = lambda response: response
    await c.until(lambda: second.code == 0)
    await c.until_equal(1, 2)


@replica_test
async def test_a_leader_that_has_evicted_the_session(c: ReplicaCluster) -> None:
    await c.replicate(1, 2, partitions=3)
    await c.commit(1, b"a")
    sessions = c.nodes[1].fetching.follower_sessions
    for session in sessions.all():
        sessions.remove(session.id)
    produced = [c.produce(1, b"b", index=index) for index in range(3)]
    await c.until(lambda: [batch.code for batch in produced] == [0, 0, 0], seconds=2)


@replica_test
async def test_a_leader_that_is_killed_and_returns(c: ReplicaCluster) -> None:
    await c.replicate(1, 2, 3)
    await c.commit(1, b"a")
    await c.kill(1)
    c.elect(2, isr=[2, 3])
    second = c.produce(2, b"b")
    await c.until(lambda: second.code == 0, seconds=1)
    await c.restart(1)
    await c.until_equal(2, 1, 3)


@replica_test
async def test_acknowledged_batches_survive_a_power_loss_of_all_replicas(c: ReplicaCluster) -> None:
    """With flush.before.ack a follower claims only what is synced."""
    await c.replicate(1, 2, 3, flush_before_ack="true")
    for value in (b"a", b"b", b"c"):
        produced = c.produce(1, value)
        await c.until(lambda produced=produced: produced.code == 0)  # type: ignore[misc]
    for node_id in (1, 2, 3):
        await c.restart(node_id, power=True)
    c.elect(3)
    assert offsets(await c.until_equal(3, 1, 2)) == [(0, 1), (1, 1), (2, 1)]


@replica_test
async def test_a_reassigned_partition(c: ReplicaCluster) -> None:
    await c.start(1, 2, 3)
    await c.create_topic(1, 2)
    await c.commit(1, b"a")
    c.elect(1, replicas=[1, 2, 3])
    await c.settle()
    assert offsets(await c.until_equal(1, 3)) == [(0, 1)]
    c.elect(3, replicas=[3, 1], isr=[3, 1])
    await c.settle()
    assert c.nodes[2].replicas.partitions == {}
    assert [name for name in c.nodes[2].disk.listdir("/data") if name.endswith("-delete")] != []
    await c.commit(3, b"b")


@replica_test
async def test_a_replica_that_is_assigned_again_while_another_one_is_removed(c: ReplicaCluster) -> None:
    """Its log is about to be deleted: it must not claim to have what that log has."""
    await c.start(1, 2)
    await c.create_topic(1, 2, partitions=2)
    for index in (0, 1):
        await c.commit(1, b"a", index=index)
    maintenance = c.nodes[2].replicas.maintenance
    remove, removing, removed = maintenance.remove, asyncio.Event(), asyncio.Event()

    async def remove_slowly(partition: Partition) -> None:
        removing.set()
        await removed.wait()
        await remove(partition)

    maintenance.remove = remove_slowly  # type: ignore[method-assign]
    for index in (0, 1):
        c.elect(1, replicas=[1], isr=[1], index=index, unaware=[2])
    c.tell(2)
    await removing.wait()
    for index in (0, 1):
        c.elect(1, replicas=[1, 2], isr=[1], index=index)
    await asyncio.sleep(2)
    for index in (0, 1):
        assert c.nodes[1].partition(index).state.followers[2].log_end_offset == -1
    removed.set()
    await c.settle()
    for index in (0, 1):
        assert offsets(await c.until_equal(1, 2, index=index)) == [(0, 1)]
    assert len([name for name in c.nodes[2].disk.listdir("/data") if name.endswith("-delete")]) == 2


@replica_test
async def test_an_image_that_lacks_a_partition_for_a_moment(c: ReplicaCluster) -> None:
    await c.replicate(1, 2, partitions=2)
    await c.commit(1, b"a", index=1)
    whole = c.topics["t"]
    c.topics["t"] = replace(whole, partitions=whole.partitions[:1])
    for node_id in (1, 2):
        c.tell(node_id)
    await c.settle()
    await c.commit(1, b"b", index=1)
    # Also a start with such an image keeps the log.
    node = await c.restart(2)
    assert node.replicas.get("t", 1) is None
    c.topics["t"] = whole
    for node_id in (1, 2):
        c.tell(node_id)
    await c.settle()
    assert offsets(await c.until_equal(1, 2, index=1)) == [(0, 1), (1, 1)]


@replica_test
async def test_a_broker_whose_session_has_ended(c: ReplicaCluster) -> None:
    await c.replicate(1, 2)
    await c.create_topic(2, 1, name="other")
    waiting = c.produce(2, b"a", topic="other")
    c.nodes[2].assigned.resign()
    assert waiting.code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    produced = c.produce(1, b"b")
    await asyncio.sleep(2)
    assert produced.code is None
    c.nodes[2].assigned.assign_roles()
    await c.until(lambda: produced.code == 0)
    # Only a new epoch makes it a leader again.
    assert c.produce(2, b"c", topic="other").code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    c.elect(2, topic="other")
    c.produce(2, b"c", topic="other")
    await c.until_equal(2, 1, topic="other")


def test_many_partitions_with_records_take_several_responses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition_reads, "MAX_FOLLOWER_RESULTS", 5)

    @replica_test
    async def story(c: ReplicaCluster) -> None:
        await c.start(1, 2)
        await c.create_topic(1, 2, partitions=12)
        await c.until(lambda: c.fetches.get((1, 2), 0) >= 1)
        sizes = []

        def count(response: FetchResponse) -> FetchResponse:
            sizes.append(sum(len(results) for _, results in response.topics))
            return response

        c.change = count
        produced = [c.produce(1, b"a", index=index) for index in range(12)]
        await c.until(lambda: all(batch.code == 0 for batch in produced))
        assert max(sizes) == 5

    story()


@replica_test
async def test_a_high_watermark_in_a_response_that_is_dropped(c: ReplicaCluster) -> None:
    """The leader begins a new epoch while its response is on its way."""
    await c.replicate(1, 2)
    await c.commit(1, b"a")
    assert c.nodes[2].partition().high_watermark == 0
    c.hold(1, 2)
    # The waiting Fetch is completed without records, and its response has the high watermark.
    await asyncio.sleep(1)
    c.elect(1)
    c.release(1, 2)
    await c.until(lambda: c.nodes[2].partition().high_watermark == 1, seconds=5)
