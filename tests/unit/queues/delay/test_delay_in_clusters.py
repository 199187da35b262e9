"""Delayed delivery on three brokers: each record is delivered once and not early, whatever happens to its leaders.

Deliveries are appends of the leader, so fencing and truncation decide about them as about any other record.
"""

import asyncio
from functools import partial

import pytest

from kbroker.api.k10011_delayed_records import CANCEL
from kbroker.queues.delay import snapshots
from kbroker.queues.delay.delay_batches import DUE, FROM
from kbroker.queues.delay.delivery import DelayedDelivery
from kbroker.queues.delay.snapshots import FILE_NAME
from protocol.errors import ErrorCode
from protocol.messages.k10011_delayed_records import DelayedRecordsRequest, DelayedRecordsResponse
from protocol.records.batch import TRANSACTIONAL, build_batch
from tests.sampling import third_of
from tests.unit.support.client import Client
from tests.unit.support.queue_cluster import End, QueueCluster, kill, power_off, stop
from tests.unit.support.simulated_hosts import simulated

DELAY_MS = b"TIMER_DELAY_MS"


class DelayCluster(QueueCluster):
    """Its topic has delay. It has an idempotent producer of delayed records."""

    sequence = 0

    async def create_topic(self, *replicas: int, **configs: str) -> None:
        await self.create(list(replicas), kbroker_delay_enable="true", **configs)

    def delivery(self, node_id: int) -> DelayedDelivery | None:
        return self.broker(node_id).services.delayed.delivery_of(self.replica(node_id))

    async def send(self, *rows: tuple[bytes, int]) -> None:
        """Produce records with their delays in ms, each in its own batch, with acks=all and retries."""
        for row in rows:
            await self.send_batch(row)

    async def send_batch(self, *rows: tuple[bytes, int]) -> None:
        """Produce records with their delays in ms in one batch, with acks=all and retries."""
        sequence, self.sequence = self.sequence, self.sequence + len(rows)

        def build(now_ms: int) -> bytearray:
            return build_batch(
                [(now_ms, b"k", value, [(DELAY_MS, b"%d" % delay)]) for value, delay in rows],
                producer_id=5, producer_epoch=0, base_sequence=sequence,
            )  # fmt: skip

        await self.produce_with_retries(build)

    async def assert_delivered(self, *values: bytes, seconds: float = 120) -> None:
        """Wait until these values were delivered. Each is delivered once, none early, and all replicas agree."""
        leader = await self.leader()

        def nothing_is_pending() -> bool:
            delivery = self.delivery(leader)
            return delivery is not None and delivery.is_loaded and delivery.state.count == 0

        deadline = self.loop.time() + seconds
        while not nothing_is_pending():
            assert self.loop.time() < deadline, "records are pending"
            await asyncio.sleep(0.1)
        await self.until_equal(leader)
        records = await self.read(leader)
        assert sorted(record.value or b"" for record in records) == sorted(values)
        sources = [dict(record.headers)[FROM] for record in records]
        assert len(set(sources)) == len(sources)
        for record in records:
            assert record.timestamp >= int(dict(record.headers)[DUE] or b""), "early"


@pytest.mark.parametrize("end", [kill, power_off, stop])
@pytest.mark.parametrize("seed", third_of(range(2)))
def test_each_record_is_delivered_once_although_the_leader_changes(end: End, seed: int) -> None:
    async def test(s: DelayCluster) -> None:
        await s.create_topic(3, 1, 2, min_insync_replicas="2")
        values = [b"%d" % n for n in range(60)]
        await s.send(*((value, 500 + 700 * n) for n, value in enumerate(values)))
        for _ in range(2):
            leader = await s.leader()
            await asyncio.sleep(1.5)
            await end(s, leader)
            await s.leader(other_than=leader)
            await asyncio.sleep(2)
            await s.machines[leader].start()
            await s.until_in_sync(1, 2, 3)
        await s.assert_delivered(*values)

    DelayCluster(seed).run(test)


@simulated(DelayCluster, range(2))
async def test_deliveries_wait_for_in_sync_replicas(s: DelayCluster) -> None:
    await s.create_topic(3, 1, 2, min_insync_replicas="2")
    await s.send((b"a", 60_000), (b"b", 61_000))
    s.machines[1].kill()
    s.machines[2].kill()
    await s.until(lambda: list(s.registration(3).isr) == [3], 60)
    await asyncio.sleep(90)
    assert await s.read(3) == []
    delivery = s.delivery(3)
    assert delivery is not None
    assert delivery.state.count == 2
    await s.machines[1].start()
    await s.until_in_sync(1, 3)
    await s.until(lambda: delivery.state.count == 0, 10)
    await s.machines[2].start()
    await s.until_in_sync(1, 2, 3)
    await s.assert_delivered(b"a", b"b")


@pytest.mark.parametrize("min_isr", ["1", "2"])
@pytest.mark.parametrize("seed", third_of(range(2)))
def test_an_isolated_leader_delivers_nothing_that_the_next_one_delivers_as_well(seed: int, min_isr: str) -> None:
    async def test(s: DelayCluster) -> None:
        await s.create_topic(3, 1, 2, min_insync_replicas=min_isr)
        values = [b"%d" % n for n in range(40)]
        await s.send(*((value, 3_000 + 500 * n) for n, value in enumerate(values)))
        s.isolate(3)
        # It does not know yet that it is cut off, and delivers into its own log.
        before = s.replica(3).log.log_end_offset
        await s.until(lambda: s.replica(3).log.log_end_offset > before, 30)
        next_leader = await s.leader(other_than=3, seen_by=1)
        assert {record.value for record in await s.read(next_leader)} <= set(values)
        await s.until(lambda: not s.replica(3).is_leader, 60)
        assert s.delivery(3) is None
        await asyncio.sleep(5)
        s.heal(3)
        await s.until_in_sync(1, 2, 3)
        await s.assert_delivered(*values)

    DelayCluster(seed).run(test)


@simulated(DelayCluster, range(2))
async def test_a_paused_leader_that_continues_delivers_nothing_twice(s: DelayCluster) -> None:
    """Its timers fire before it learns that others lead now."""
    await s.create_topic(3, 1, 2)
    values = [b"%d" % n for n in range(40)]
    await s.send(*((value, 3_000 + 500 * n) for n, value in enumerate(values)))
    s.machines[3].pause()
    await s.leader(other_than=3, seen_by=1)
    await asyncio.sleep(5)
    s.machines[3].resume()
    await s.until_in_sync(1, 2, 3)
    await s.assert_delivered(*values)


@simulated(DelayCluster, range(2))
async def test_what_a_truncation_removes_is_neither_delivered_nor_cancelled(s: DelayCluster) -> None:
    await s.create_topic(3, 1, 2)
    await s.send((b"a", 120_000), (b"b", 120_000))
    s.isolate(3)
    lost = build_batch([(s.now_ms(3), None, b"lost", [(DELAY_MS, b"90000")])])
    response = await s.client(3, partial(Client.produce, topic="t", records=lost, acks=1))
    assert response.error_code == 0
    # The cancellation is appended, but never committed, so it is not acknowledged.
    request = DelayedRecordsRequest(topic_name="t", operation=CANCEL, offsets=[0], timeout_ms=60_000)
    cancelled = await s.client(3, lambda client: client.request(request, 0, DelayedRecordsResponse))
    assert cancelled.error_code in (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.REQUEST_TIMED_OUT), cancelled
    await s.leader(other_than=3, seen_by=1)
    s.heal(3)
    await s.until_in_sync(1, 2, 3)
    # The broker with the truncated log leads again.
    for node_id in (1, 2):
        await s.machines[node_id].stop()
        await s.leader(other_than=node_id)
    await s.machines[1].start()
    await s.machines[2].start()
    await s.until_in_sync(1, 2, 3)
    await s.assert_delivered(b"a", b"b", seconds=200)


@simulated(DelayCluster, range(2))
async def test_a_cancellation_survives_the_leader_that_has_acknowledged_it(s: DelayCluster) -> None:
    await s.create_topic(3, 1, 2, min_insync_replicas="2")
    await s.send((b"a", 60_000), (b"b", 60_000))
    request = DelayedRecordsRequest(topic_name="t", operation=CANCEL, offsets=[0])
    response = await s.client(3, lambda client: client.request(request, 0, DelayedRecordsResponse))
    assert [result.error_code for result in response.results] == [0]
    s.machines[3].power_off()
    follower = await s.client(1 if await s.leader(other_than=3) == 2 else 2, partial(_ask, request=request))
    assert follower.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    await s.machines[3].start()
    await s.until_in_sync(1, 2, 3)
    await s.assert_delivered(b"b")


async def _ask(client: Client, request: DelayedRecordsRequest) -> DelayedRecordsResponse:
    return await client.request(request, 0, DelayedRecordsResponse)


@simulated(DelayCluster, range(2))
async def test_records_are_delivered_by_the_broker_to_which_their_partition_moves(s: DelayCluster) -> None:
    await s.create_topic(1, 2)
    values = [b"%d" % n for n in range(30)]
    await s.send(*((value, 1000 + 1000 * n) for n, value in enumerate(values)))
    await asyncio.sleep(5)
    await s.reassign([3])
    await s.until(lambda: list(s.registration(1).replicas) == [3], 60)
    await s.until(lambda: s.registration(3).leader == 3, 10)
    await s.assert_delivered(*values)
    assert s.broker(1).services.delayed.deliveries() == {}
    assert s.broker(3).services.delayed.metrics.delivered_records > 0


@simulated(DelayCluster, range(2))
async def test_a_transaction_is_committed_after_its_leader_has_changed(s: DelayCluster) -> None:
    await s.create_topic(3, 1, 2, min_insync_replicas="2")
    for pid in (7, 8):
        partition = s.replica(3)
        batch = build_batch(
            [(s.now_ms(3), None, b"%d" % pid, [(DELAY_MS, b"1000")])],
            producer_id=pid, producer_epoch=0, base_sequence=0, attributes=TRANSACTIONAL,
        )  # fmt: skip
        guard = partition.log.producers.begin_verification(pid, 0, 0, True)
        partition.append_as_leader(memoryview(batch), -1, 12, s.now_ms(3), True, guard, True)
    await s.until(lambda: s.replica(3).high_watermark == 2, 10)
    s.machines[3].power_off()
    leader = await s.leader(other_than=3)
    await asyncio.sleep(5)
    assert await s.read(leader, 1) == []
    for pid, committed in ((7, True), (8, False)):
        s.end_transaction(leader, pid, committed)
    await asyncio.sleep(5)
    assert [record.value for record in await s.read(leader, 1)] == [b"7"]


@simulated(DelayCluster, range(1))
async def test_the_snapshot_of_a_former_leader_is_not_used_for_a_log_that_went_another_way(s: DelayCluster) -> None:
    """It has a pending record, and deliveries, which the truncation has removed. Their offsets are those of others."""
    await s.create_topic(3, 1, 2, min_insync_replicas="1")
    start = s.now_ms(3)
    for first in range(0, 12_000, 200):
        due = 5_000 if first < 6_000 else 120_000
        records = build_batch([(start, None, b"%d" % n, [(DELAY_MS, b"%d" % due)]) for n in range(first, first + 200)])
        await s.produce(3, records)
    s.isolate(3)
    delivery = s.delivery(3)
    assert delivery is not None
    lost = build_batch([(start, None, b"lost", [(DELAY_MS, b"90000")])])
    response = await s.client(3, partial(Client.produce, topic="t", records=lost, acks=1))
    assert response.base_offset == 12_000
    await s.until(lambda: delivery.state.count == 6_001, 10)
    await s.machines[3].loop.run(delivery._snapshot.write_if_worthwhile(delivery.state))
    assert delivery._snapshot.offset > 12_000
    leader = await s.leader(other_than=3, seen_by=1)
    more = build_batch([(start, None, b"more", [(DELAY_MS, b"120000")])] * 2)
    await s.produce(leader, more)
    s.heal(3)
    await s.until_in_sync(1, 2, 3)
    await s.make_only_replica_in_sync(3)
    assert s.replica(3).log.log_end_offset >= delivery._snapshot.offset
    await s.until(lambda: s.delivery(3) is not None and s.delivery(3).is_loaded, 10)  # type: ignore[union-attr]
    for node_id in (1, 2):
        await s.machines[node_id].start()
    await s.until_in_sync(1, 2, 3)
    await s.assert_delivered(*(b"%d" % n for n in range(12_000)), b"more", b"more", seconds=200)


@simulated(DelayCluster, range(2))
async def test_a_follower_that_becomes_the_leader_replays_only_the_end_of_its_log(s: DelayCluster) -> None:
    """It has a snapshot of its own, although it never led the partition."""
    await s.create_topic(3, 1, 2)
    start = s.now_ms(3)

    def delayed(first: int) -> bytearray:
        return build_batch([(start, None, b"%d" % n, [(DELAY_MS, b"200000")]) for n in range(first, first + 100)])

    for first in range(0, 1_000, 100):
        await s.produce(3, delayed(first))
    await s.until_equal(3)
    path = f"{s.replica(1).log.directory}/{FILE_NAME}"
    await s.until(lambda: all(s.machines[node_id].disk.exists(path) for node_id in (1, 2)), 120)
    await s.produce(3, delayed(1_000))
    # The time until the next look, in which more is replicated, is over before the leader ends.
    await asyncio.sleep(snapshots.INTERVAL_S + 1)
    s.machines[3].kill()
    leader = await s.leader(other_than=3)
    await s.until(lambda: s.delivery(leader) is not None and s.delivery(leader).is_loaded, 10)  # type: ignore[union-attr]
    delivery = s.delivery(leader)
    assert delivery is not None
    assert delivery._snapshot.offset == 1_000
    assert delivery.state.count == 1_100
    await s.machines[3].start()
    await s.until_in_sync(1, 2, 3)
    await s.assert_delivered(*(b"%d" % n for n in range(1_100)), seconds=200)


@pytest.mark.parametrize("skew_ms", [-30_000, 30_000])
def test_a_record_is_not_early_by_the_clock_of_the_broker_that_delivers_it(skew_ms: int) -> None:
    async def test(s: DelayCluster) -> None:
        for node_id in (1, 2):
            s.machines[node_id].clock.skew_ms = skew_ms
        await s.create_topic(3, 1, 2)
        await s.send((b"a", 60_000))
        s.machines[3].power_off()
        await s.leader(other_than=3)
        await s.machines[3].start()
        await s.until_in_sync(1, 2, 3)
        await s.assert_delivered(b"a")

    DelayCluster(0).run(test)


class RetentionCluster(DelayCluster):
    def configs(self, node_id: int) -> dict[str, str]:
        return super().configs(node_id) | {"log.retention.check.interval.ms": "700"}


@pytest.mark.parametrize("end", [kill, power_off])
@pytest.mark.parametrize("seed", third_of(range(2)))
def test_retention_loses_nothing_while_leaders_change(end: End, seed: int) -> None:
    """Pending records are stored anew again and again, by several leaders, until they are due."""

    async def test(s: RetentionCluster) -> None:
        await s.create_topic(
            3, 1, 2, min_insync_replicas="2", retention_ms="4000", segment_ms="1000", file_delete_delay_ms="0"
        )
        values = [b"%d" % n for n in range(12)]
        due_ms = s.now_ms(3) + 150_000
        await s.send(*((value, 150_000 + 100 * n) for n, value in enumerate(values)))
        for number in range(5):
            for _ in range(10):
                await s.send((b"tick", 300 * (number % 3)))
                await asyncio.sleep(0.5 + 0.07 * number)
            leader = await s.leader()
            await end(s, leader)
            await s.leader(other_than=leader)
            await s.machines[leader].start()
            await s.until_in_sync(1, 2, 3)
        assert s.replica(await s.leader()).log.log_start_offset > len(values), "only the new ones are left"
        assert s.now_ms(3) < due_ms
        await s.alter_topic("t", {"retention.ms": "-1"})
        await asyncio.sleep((due_ms - s.now_ms(3)) / 1000 + 5)
        leader = await s.leader()
        await s.until_equal(leader)
        found = [record for record in await s.read(leader, from_start=True) if record.value != b"tick"]
        assert [record.value for record in found] == values

    RetentionCluster(seed).run(test)


@simulated(DelayCluster, range(2))
async def test_followers_show_no_pending_records(s: DelayCluster) -> None:
    """Consumers may read from followers. The topic has got delay when it had records already."""
    await s.create([3, 1, 2])
    await s.send((b"plain", 5_000))
    assert len(await s.read(3)) == 1
    await s.alter_topic("t", {"kbroker.delay.enable": "true"})
    await s.until(lambda: all(s.replica(n).log.config.kbroker_delay_enable for n in (1, 2, 3)), 10)
    await s.send((b"later", 60_000))
    await asyncio.sleep(10)
    for node_id in (1, 2, 3):
        assert s.replica(node_id).high_watermark == 2
        assert [record.value for record in await s.read(node_id)] == [b"plain"]
    await asyncio.sleep(60)
    for node_id in (1, 2, 3):
        assert [record.value for record in await s.read(node_id)] == [b"plain", b"later"]


@simulated(DelayCluster, range(2))
async def test_a_new_leader_does_not_deliver_deleted_records(s: DelayCluster) -> None:
    await s.create_topic(3, 1, 2, min_insync_replicas="2")
    # The new leader replays the whole batch.
    await s.send_batch((b"a", 60_000), (b"b", 60_000), (b"c", 60_000))
    assert await s.client(3, lambda client: client.delete_records("t", 2)) == (0, 2)
    s.machines[3].power_off()
    leader = await s.leader(other_than=3)
    await asyncio.sleep(90)
    assert [record.value for record in await s.read(leader, from_start=True)] == [b"c"]


@simulated(DelayCluster, range(2))
async def test_a_topic_of_the_same_name_begins_without_pending_records(s: DelayCluster) -> None:
    await s.create_topic(3, 1, 2)
    await s.send((b"a", 60_000))
    await s.client(s.controller, lambda client: client.delete_topic("t"))
    await s.until(lambda: all(s.broker(n).services.replicas.get("t", 0) is None for n in (1, 2, 3)), 30)
    await s.create_topic(3, 1, 2)
    s.sequence = 0
    await s.send((b"b", 60_000))
    await s.assert_delivered(b"b")
