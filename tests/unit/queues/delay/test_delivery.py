"""Delayed records of a whole broker in virtual time: when they are delivered, and that each is delivered once."""

import asyncio
from typing import Any

import pytest

from kbroker.common import KafkaError, TopicPartition
from kbroker.queues.delay import delivery
from kbroker.queues.delay.delivery import DelayedDelivery, DelayMetrics
from kbroker.replica.partition import Partition
from kbroker.storage.log.log_reads import read_blocking
from kbroker.storage.producers.transactions import TransactionMarker
from protocol.errors import ErrorCode
from protocol.records.batch import TRANSACTIONAL, build_batch, iter_batch_records, iter_headers
from protocol.records.record import Record
from tests.unit.support.client import Client
from tests.unit.support.simulated_broker import Machine, broker_test

DELAY_MS, DELIVER_MS = b"TIMER_DELAY_MS", b"TIMER_DELIVER_MS"


class Topic:
    """A topic with delay, its producer and its consumer."""

    def __init__(self, m: Machine, client: Client) -> None:
        self.m, self.client = m, client

    @classmethod
    async def create(cls, m: Machine, **configs: Any) -> "Topic":
        client = await m.client()
        await client.create_topic("t", **{"kbroker.delay.enable": "true", **configs})
        return cls(m, client)

    @property
    def partition(self) -> Partition:
        return self.m.partition("t")

    @property
    def delivery(self) -> DelayedDelivery:
        delivery = self.m.broker.services.delayed.delivery_of(self.partition)
        assert delivery is not None
        return delivery

    def records(self, *rows: tuple[bytes, int | None], **fields: Any) -> bytearray:
        return build_batch(
            [
                (self.m.now_ms, None, value, [] if delay is None else [(DELAY_MS, b"%d" % delay)])
                for value, delay in rows
            ],
            **fields,
        )

    def append(self, batch: bytearray, *, transactional: bool = False) -> int:
        copy = memoryview(bytearray(batch))
        return self.partition.append_as_leader(copy, -1, 12, self.m.now_ms, transactional)[0]

    def produce(self, *rows: tuple[bytes, int | None], **fields: Any) -> int:
        return self.append(self.records(*rows, **fields))

    async def fetch(self, offset: int = 0, isolation_level: int = 0) -> tuple[list[tuple[int, Record]], int]:
        """Return the visible records with their offsets, and where a consumer goes on."""
        data = await self.client.fetch_partition("t", offset, isolation_level=isolation_level, max_wait_ms=0)
        assert data.error_code == 0
        aborted = [row.producer_id for row in data.aborted_transactions or ()]
        found: list[tuple[int, Record]] = []
        position = offset
        content = bytes(data.records or b"")
        for pos, header in iter_headers(content):
            position = header.next_offset
            if header.is_control or (header.is_transactional and header.producer_id in aborted):
                continue
            for record in iter_batch_records(content[pos : pos + header.size], header):
                found.append((header.base_offset + record.offset_delta, record))
        return found, position

    async def seen(self, isolation_level: int = 0) -> list[bytes | None]:
        """Read everything."""
        values: list[bytes | None] = []
        position = self.partition.log.log_start_offset
        while True:
            found, next_position = await self.fetch(position, isolation_level)
            values += [record.value for _, record in found]
            if next_position == position:
                return values
            position = next_position

    async def until_seen(self, *values: bytes, seconds: float = 10) -> None:
        for _ in range(int(seconds * 100)):
            if sorted(map(bytes, filter(None, await self.seen()))) == sorted(values):
                return
            await asyncio.sleep(0.01)
        raise AssertionError(f"{await self.seen()} is not {values}")

    async def reconnect(self) -> None:
        self.client = await self.m.client()


@broker_test
async def test_records_of_large_batches_become_pending_in_steps(m: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "APPLIED_AT_ONCE", 10)
    t = await Topic.create(m)
    t.produce((b"first", 60_000))
    await m.until(lambda: len(t.delivery.state.pending) == 1)
    # More than wait in memory: the others are read again.
    for _ in range(40):
        t.produce(*((b"some", 60_000 + n * 7 % 50) for n in range(50)))
    t.produce((b"last", 1000))
    assert len(t.delivery.state.pending) == 1
    await m.until(lambda: len(t.delivery.state.pending) == 2002)
    applied = t.delivery.state.pending.after(None, 10_000)
    await asyncio.sleep(2)
    assert await t.seen() == [b"last"]
    await m.restart()
    await t.reconnect()
    await m.until(lambda: len(t.delivery.state.pending) == 2001)
    assert t.delivery.state.pending.after(None, 10_000) == applied[1:]


@broker_test
async def test_records_are_delivered_when_due_and_not_before(m: Machine) -> None:
    t = await Topic.create(m)
    start = m.now_ms
    t.produce((b"a", 700), (b"now", None), (b"b", 300), (b"c", 300))
    assert await t.seen() == [b"now"]
    await asyncio.sleep(0.28)
    assert await t.seen() == [b"now"]
    await asyncio.sleep(1)
    found, _ = await t.fetch(4)
    assert [record.value for _, record in found] == [b"b", b"c", b"a"]
    lateness = [record.timestamp - start - due for (_, record), due in zip(found, (300, 300, 700), strict=True)]
    assert all(0 <= late <= 50 for late in lateness)
    assert t.delivery.state.count == 0


@broker_test
async def test_a_consumer_moves_on_below_hidden_batches(m: Machine) -> None:
    t = await Topic.create(m)
    t.produce((b"a", 60_000))
    t.produce((b"b", 60_000))
    assert await t.fetch(0) == ([], 2)


@broker_test
async def test_a_record_that_is_already_due_is_visible_immediately(m: Machine) -> None:
    t = await Topic.create(m)
    t.append(build_batch([(m.now_ms, None, b"past", [(DELIVER_MS, b"%d" % (m.now_ms - 1))])]))
    t.produce((b"zero", 0))
    assert await t.seen() == [b"past", b"zero"]
    assert t.partition.log.log_end_offset == 2


@pytest.mark.parametrize("power", [False, True])
@broker_test
async def test_each_record_is_delivered_once_although_the_broker_crashes(m: Machine, power: bool) -> None:
    t = await Topic.create(m, **{"flush.messages": "1"})
    values = [b"%d" % n for n in range(40)]
    for n, value in enumerate(values):
        t.produce((value, 100 + 20 * n))
    for _ in range(4):
        await asyncio.sleep(0.15)
        await m.crash(power=power)
        await m.start()
        await t.reconnect()
    await t.until_seen(*values)
    await asyncio.sleep(60)
    assert sorted(await t.seen()) == sorted(values)


@broker_test
async def test_a_clean_restart_continues_with_the_snapshot(m: Machine) -> None:
    t = await Topic.create(m)
    for first in range(0, 12_000, 50):
        t.produce(*((b"%d" % n, 5_000) for n in range(first, first + 50)))
    await m.until(lambda: t.delivery.state.count == 12_000)
    await m.restart()
    await t.reconnect()
    await m.until(lambda: t.delivery.is_loaded)
    assert t.delivery._snapshot.offset == 12_000
    await m.until(lambda: t.delivery.state.count == 0)
    assert len(await t.seen()) == 12_000


@broker_test
async def test_a_retry_of_a_batch_is_stored_once(m: Machine) -> None:
    t = await Topic.create(m)
    batch = t.records((b"a", 100), (b"now", None), producer_id=5, producer_epoch=0, base_sequence=0)
    assert t.append(batch) == t.append(batch) == 0
    following = t.records((b"b", 100), producer_id=5, producer_epoch=0, base_sequence=2)
    assert t.append(following) == t.append(following) == 2
    await t.until_seen(b"a", b"now", b"b")
    assert t.append(batch) == 0


@broker_test
async def test_records_of_a_transaction_are_delivered_after_its_commit_only(m: Machine) -> None:
    t = await Topic.create(m)
    for pid in (7, 8):
        fields = {"producer_id": pid, "producer_epoch": 0, "base_sequence": 0, "attributes": TRANSACTIONAL}
        batch = t.records((b"now%d" % pid, None), (b"later%d" % pid, 100), **fields)
        guard = t.partition.log.producers.begin_verification(pid, 0, 0, True)
        t.partition.append_as_leader(memoryview(batch), -1, 12, m.now_ms, True, guard, True)
    await asyncio.sleep(1)
    assert await t.seen(1) == []
    for pid, committed in ((7, True), (8, False)):
        marker = TransactionMarker(
            producer_id=pid, producer_epoch=1, committed=committed, coordinator_epoch=0, transaction_version=2
        )
        m.broker.services.replicas.append_marker(TopicPartition("t", 0), marker, lambda code: None)
    await asyncio.sleep(1)
    assert await t.seen(1) == [b"now7", b"later7"]
    assert t.delivery.state.count == 0


@pytest.mark.parametrize(
    "headers",
    [
        [(b"DELAY", b"x")],
        [(b"DELAY", b"0")],
        [(b"DELAY", b"1"), (DELAY_MS, b"1")],
        [(DELAY_MS, b"%d" % (41 * 86_400_000))],
        [(b"Delay", b"1")],
        [(b"timer_delay_sec", b"1")],
    ],
)
@broker_test
async def test_a_batch_with_an_invalid_record_is_not_stored(m: Machine, headers: list[tuple[bytes, bytes]]) -> None:
    t = await Topic.create(m)
    # A header in other case besides one of these is the application's own.
    good = [(b"delay", b"3"), (b"DELAY", b"1")]
    batch = build_batch([(m.now_ms, None, b"good", good), (m.now_ms, None, b"bad", headers)])
    with pytest.raises(KafkaError) as refused:
        t.append(batch)
    assert refused.value.code == ErrorCode.INVALID_RECORD
    assert [index for index, _ in refused.value.record_errors] == [1]  # type: ignore[attr-defined]
    assert t.partition.log.log_end_offset == 0


@pytest.mark.parametrize("bit", [0x4000, 0x2000, 0x1000, 0x0800])
@broker_test
async def test_a_client_cannot_set_private_attributes(m: Machine, bit: int) -> None:
    t = await Topic.create(m)
    with pytest.raises(KafkaError) as refused:
        t.append(t.records((b"a", None), attributes=bit))
    assert refused.value.code == ErrorCode.INVALID_RECORD


@broker_test
async def test_a_pending_record_does_not_keep_its_segment(m: Machine) -> None:
    retention = {"retention.ms": "600000", "segment.ms": "60000", "file.delete.delay.ms": "0"}
    t = await Topic.create(m, **retention)
    day = 86_400_000
    t.produce((b"later", day), (b"now", None))
    for _ in range(6):
        await asyncio.sleep(300)
        t.produce((b"tick", None))
    assert t.partition.log.log_start_offset > 1
    assert t.delivery.state.count == 1
    await m.crash()
    await m.start()
    await t.reconnect()
    await asyncio.sleep(day / 1000)
    assert t.delivery.state.count == 0
    assert m.broker.services.delayed.metrics.delivered_records == 1
    assert m.broker.services.delayed.metrics.max_lateness_ms <= 50


@broker_test
async def test_pending_records_of_many_batches_are_moved_together(m: Machine) -> None:
    t = await Topic.create(m, **{"retention.ms": "600000", "segment.ms": "60000", "file.delete.delay.ms": "0"})
    count, day = 500, 86_400_000
    for number in range(count):
        t.produce((b"later", day + number * 7 % count))
        t.produce((b"now", None))
    await m.until(lambda: len(t.delivery.state.pending) == count)
    before = t.delivery.state.pending.after(None, count)
    await asyncio.sleep(61)
    t.produce((b"tick", None))
    log_end = t.partition.log.log_end_offset
    await asyncio.sleep(1200)
    log = t.partition.log
    assert log.log_start_offset >= 2 * count
    after = t.delivery.state.pending.after(None, 2 * count)
    assert sorted(due for due, _ in after) == [due for due, _ in before]
    data = read_blocking(log, log_end, 1 << 20, log.log_end_offset)
    batches = [header.count for _, header in iter_headers(data)]
    assert sum(batches) % count == 0
    assert len(batches) <= sum(batches) // count * (count // delivery.MOVE_SLICE + 1)


@broker_test
async def test_a_new_leader_keeps_old_segments_until_its_log_is_committed(m: Machine) -> None:
    """The former leader may have stored pending records anew at the end of the log, which no other replica has yet."""
    t = await Topic.create(m, **{"retention.ms": "600000", "segment.ms": "60000"})
    t.produce((b"a", None))
    await asyncio.sleep(61)
    t.produce((b"b", None))
    log, later_ms = t.partition.log, m.now_ms + 3_600_000
    delivery = DelayedDelivery(m.broker.environment, t.partition, DelayMetrics())
    delivery.is_loaded = True
    t.partition.state.high_watermark = 1
    assert delivery.retention_limit(later_ms) == log.log_start_offset == 0
    t.partition.state.high_watermark = 2
    assert delivery.retention_limit(later_ms) == 2


@broker_test
async def test_a_former_leader_appends_nothing_that_it_was_about_to_deliver(m: Machine) -> None:
    t = await Topic.create(m)
    # So large that a thread decompresses it.
    await t.client.produce("t", t.records((bytes(300_000), 5000), codec=1))
    m.threads.held.add("decompress")
    await asyncio.sleep(6)
    t.partition.resign()
    m.threads.release("decompress")
    await asyncio.sleep(2)
    assert t.partition.log.log_end_offset == 1


@broker_test
async def test_deleted_records_are_not_delivered(m: Machine) -> None:
    t = await Topic.create(m)
    t.produce((b"a", 1000), (b"b", 1000))
    assert (await t.client.delete_records("t", 1))[0] == 0
    await asyncio.sleep(2)
    assert await t.seen() == [b"b"]


@broker_test
async def test_many_records_that_are_due_at_once_do_not_hold_up_the_loop(m: Machine) -> None:
    t = await Topic.create(m)
    due = m.now_ms + 1000
    for first in range(0, 3000, 50):
        t.append(
            build_batch([(m.now_ms, None, b"%d" % n, [(DELIVER_MS, b"%d" % due)]) for n in range(first, first + 50)])
        )
    await m.until(lambda: m.broker.services.delayed.metrics.delivered_records == 3000)
    assert [int(value or b"") for value in await t.seen()] == list(range(3000))


@broker_test
async def test_deliveries_fit_into_a_segment_and_a_larger_record_is_alone_in_one(m: Machine) -> None:
    t = await Topic.create(m, **{"internal.segment.bytes": "2048"})
    headers = [(b"h%d" % n, b"x" * 40) for n in range(4)]
    values = [b"%d" % n for n in range(30)]
    for value in values:
        t.append(build_batch([(m.now_ms, None, value, [*headers, (DELAY_MS, b"500")])]))
    # As large as segment.bytes permits, until the delivery adds its headers.
    large = b"l" * (2048 - 61 - 40)
    t.produce((large, 500))
    await t.until_seen(*values, large)
    sizes = [segment.size for segment in t.partition.log.segments]
    assert len([size for size in sizes if size > 2048]) == 1


@broker_test
async def test_delay_is_refused_for_compacted_topics_and_cannot_be_disabled(m: Machine) -> None:
    t = await Topic.create(m)
    for configs in ({"kbroker.delay.enable": "false"}, {"cleanup.policy": "compact"}):
        with pytest.raises(AssertionError, match=r"kbroker\.delay\.enable"):
            await t.client.alter_topic("t", **{"kbroker.delay.enable": "true", **configs})


@broker_test
async def test_the_levels_of_a_topic(m: Machine) -> None:
    """They are the topic's own, for producers, for consumers, and after a restart. They never change."""
    levels = "kbroker.delay.levels"
    t = await Topic.create(m, **{levels: "3s 2m"})
    start_ms = m.now_ms

    def batch(*rows: tuple[bytes, bytes]) -> bytearray:
        return build_batch([(start_ms, None, value, [(b"DELAY", level)] if level else []) for level, value in rows])

    t.append(batch((b"1", b"a"), (b"2", b"b"), (b"", b"now"), (b"1", b"c")))
    assert (await t.client.produce("t", batch((b"3", b"x")))).error_code == ErrorCode.INVALID_RECORD
    for changed in ("3s 1m", "1s 5s"):
        with pytest.raises(AssertionError, match="cannot be changed"):
            await t.client.alter_topic("t", **{levels: changed})
    assert await t.seen() == [b"now"]
    await m.crash(power=False)
    await m.start()
    await t.reconnect()
    await m.until(lambda: t.delivery.is_loaded)
    assert [due - start_ms for due, _ in t.delivery.state.pending.after(None, 9)] == [3_000, 3_000, 120_000]
    await t.until_seen(b"now", b"a", b"c")
    assert m.now_ms - start_ms >= 3_000
