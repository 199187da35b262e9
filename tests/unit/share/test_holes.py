"""Stories of records that share consumers do not see: the broker archives them, and they do not use up the window."""

from __future__ import annotations

import asyncio
from random import Random

from kbroker.coordinator.share.share_partition_state import DeliveryState, PersistedState, SharePartitionKey
from kbroker.coordinator.share.state_batches import combine_batches
from kbroker.replica.fetch.filter_scan import LookBudget
from kbroker.share.delivery import Acknowledgement, AcknowledgeType, DeliveryPolicy, ScannedBatch
from kbroker.share.in_flight import Span
from kbroker.share.partition import SharePartition
from kbroker.share.record_scan import ShareReadRequest, scan
from protocol.records.batch import build_batch
from tests.unit.support.share_consumer import (
    ShareConsumer,
    StateCoordinator,
    acquired,
    alter_group,
    install,
    records_of,
)
from tests.unit.support.simulated_broker import Machine, broker_test
from tests.unit.support.transactional_producer import init_producer
from tests.unit.support.views import create_view, tagged


async def start(machine: Machine, **configs: str) -> StateCoordinator:
    coordinator = StateCoordinator()
    install(machine, coordinator)
    await alter_group(await machine.client(), "g", share_auto_offset_reset="earliest", **configs)
    return coordinator


@broker_test
async def test_a_view_spends_no_window_on_the_records_of_others(machine: Machine) -> None:
    coordinator = await start(machine, share_partition_max_record_locks="100")
    client = await machine.client()
    await client.create_topic("orders")
    await create_view(client)
    for first in range(0, 1000, 50):
        rows = [(b"%d" % n, b"paid" if n % 100 == 0 else b"open", None) for n in range(first, first + 50)]
        assert (await client.produce("orders", tagged(*rows, codec=1))).error_code == 0
    view_id = machine.broker.services.metadata.topics["paid"].topic_id
    consumer = await ShareConsumer.open(machine, view_id)
    found: list[int] = []
    while len(found) < 10:
        data = await consumer.fetch(max_wait_ms=500)
        values = records_of(data.records)
        for first, last, count in acquired(data):
            assert (first, count) == (last, 1)
            assert values[first].value == b"%d" % first
            found.append(first)
    # All of them at once, though they are 900 offsets apart, and the first is still open.
    assert found == list(range(0, 1000, 100))
    assert (await consumer.acknowledge(*[(n, n, 1) for n in found])).error_code == 0
    assert await consumer.acquire(max_wait_ms=100) == []
    assert coordinator.starts[SharePartitionKey("g", view_id, 0)] == 1000


@broker_test
async def test_a_group_that_reads_committed_records_sees_no_other_ones(machine: Machine) -> None:
    coordinator = await start(machine, share_isolation_level="read_committed")
    client = await machine.client()
    topic_id = await client.create_topic("t")
    producer = await init_producer(machine)
    consumer = await ShareConsumer.open(machine, topic_id)
    await client.produce("t", build_batch([(0, None, b"before", ())]))
    assert (await producer.send("t", b"aborted 1", b"aborted 2")).error_code == 0
    await client.produce("t", build_batch([(0, None, b"between", ())]))
    assert await consumer.acquire(max_wait_ms=100) == [(0, 0, 1)], "the transaction is open"
    waiting = consumer.send_fetch(max_wait_ms=60_000)
    assert await producer.abort() == 0
    assert acquired((await waiting).responses[0].partitions[0]) == [(3, 3, 1)]
    assert (await producer.send("t", b"committed")).error_code == 0
    assert await producer.commit() == 0
    assert await consumer.acquire(max_wait_ms=500) == [(5, 5, 1)]
    assert (await consumer.acknowledge((0, 0, 1), (3, 3, 1), (5, 5, 1))).error_code == 0
    assert await consumer.acquire(max_wait_ms=500) == []
    # The marker of the second transaction is behind what was read with its records.
    assert coordinator.starts[SharePartitionKey("g", topic_id, 0)] == 7


@broker_test
async def test_records_that_expire_while_they_wait_are_not_delivered_again(machine: Machine) -> None:
    coordinator = await start(machine)
    client = await machine.client()
    topic_id = await client.create_topic("t", kbroker_ttl_ms=20_000)
    await client.produce("t", build_batch([(machine.now_ms, None, b"%d" % n, ()) for n in range(3)]))
    consumer = await ShareConsumer.open(machine, topic_id)
    assert await consumer.acquire(max_wait_ms=500) == [(0, 2, 1)]
    # The locks expire after 30 s, the records after 20 s.
    assert await consumer.acquire(max_wait_ms=60_000) == []
    assert coordinator.starts[SharePartitionKey("g", topic_id, 0)] == 3


@broker_test
async def test_a_scan_finds_the_records_that_compaction_has_left(machine: Machine) -> None:
    client = await machine.client()
    await client.create_topic("t", cleanup_policy="compact", segment_ms=1000, min_cleanable_dirty_ratio=0)
    random = Random(5)
    for codec in (0, 1, 2, 3, 4):
        rows = [(machine.now_ms, b"k%d" % random.randrange(12), b"v", ()) for _ in range(30)]
        assert (await client.produce("t", build_batch(rows, codec=codec))).error_code == 0
        await asyncio.sleep(2)
    await asyncio.sleep(60)
    log, clock = machine.partition("t").log, machine.clock
    position, offsets, found = 0, list[int](), set[int]()
    while position < log.log_end_offset:
        # One segment after the other.
        request = ShareReadRequest(None, position, log.log_end_offset, 1 << 20, False)
        read = scan(log, request, LookBudget.for_thread(clock, True), clock, True)
        assert read is not None
        assert read.scanned.first == position
        position = read.scanned.last + 1
        offsets += [
            n for batch in read.batches for span in batch.scanned.spans for n in range(span.first, span.last + 1)
        ]
        found.update(n for batch in read.batches for n in records_of(batch.data))
    assert len(offsets) < 150
    assert offsets == sorted(found)


def test_a_record_that_is_gone_after_its_delivery_is_stored_as_archived() -> None:
    """The state of the higher delivery count applies, so the hole has that of the record."""
    policy = DeliveryPolicy()
    partition = SharePartition(PersistedState(0, 0, ()), 0)

    def acquire(*spans: Span) -> None:
        partition.acquire("m", [ScannedBatch(spans)], Span(0, 2), policy, 0, 10, 10, is_strict=False)

    acquire(Span(0, 2))
    release = partition.acknowledge("m", [Acknowledgement(1, 1, AcknowledgeType.RELEASE)], policy, 0)
    write, _ = partition.begin_write([release])
    partition.commit(release)
    stored = combine_batches((), write.batches, write.start_offset)
    # Meanwhile it was compacted.
    acquire(Span(0, 0), Span(2, 2))
    write, _ = partition.begin_write([])
    stored = combine_batches(stored, write.batches, write.start_offset)
    assert [(each.first, each.last, each.state) for each in stored] == [(1, 1, DeliveryState.ARCHIVED)]
