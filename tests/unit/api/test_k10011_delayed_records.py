"""DelayedRecords: pending records are listed in pages, cancelled and delivered on request."""

import asyncio
from typing import Any

import pytest

from kbroker.api import k10011_delayed_records
from kbroker.api.k10011_delayed_records import CANCEL, DELIVER, LIST, MAX_OFFSETS
from kbroker.common import TopicPartition
from kbroker.storage.producers.transactions import TransactionMarker
from protocol.errors import ErrorCode
from protocol.messages.k10011_delayed_records import DelayedRecordsRequest, DelayedRecordsResponse
from protocol.records.batch import TRANSACTIONAL, build_batch
from tests.unit.queues.delay.test_delivery import DELAY_MS, DELIVER_MS, Topic
from tests.unit.support.simulated_broker import HOUR, Machine, broker_test


async def ask(t: Topic, operation: int, *offsets: int, topic: str = "t", **fields: Any) -> DelayedRecordsResponse:
    fields.setdefault("max_records", 1000)
    request = DelayedRecordsRequest(topic_name=topic, operation=operation, offsets=list(offsets), **fields)
    return await t.client.request(request, 0, DelayedRecordsResponse)


def outcomes(response: DelayedRecordsResponse) -> dict[int, ErrorCode]:
    assert response.error_code == 0, response.error_message
    return {result.offset: ErrorCode(result.error_code) for result in response.results}


@broker_test
async def test_a_list_is_in_the_order_of_delivery(m: Machine) -> None:
    t = await Topic.create(m)
    now = m.now_ms
    headers = [(b"trace", b"7"), (DELAY_MS, b"9000")]
    t.append(build_batch([(now - 5, b"key", b"value", headers), (now, None, b"visible", [])]))
    t.produce((b"b", 5000), (b"c", 7000))
    response = await ask(t, LIST)
    assert [(row.offset, row.due_ms - now) for row in response.records] == [(2, 5000), (3, 7000), (0, 9000)]
    assert (response.pending_count, response.first_due_ms, response.has_more) == (3, now + 5000, False)
    last = response.records[-1]
    assert (last.key, last.value, last.value_size, last.timestamp_ms) == (b"key", None, 5, now - 5)
    assert [(header.name, header.value) for header in last.headers] == [(DELAY_MS, b"9000")]
    with_payload = (await ask(t, LIST, include_payload=True)).records[-1]
    assert with_payload.value == b"value"
    assert [(header.name, header.value) for header in with_payload.headers] == headers
    counts = await ask(t, LIST, max_records=0)
    assert (counts.records, counts.pending_count, counts.has_more) == ([], 3, True)


@broker_test
async def test_pages_are_bounded_and_continue(m: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(k10011_delayed_records, "MAX_RECORDS", 1000)
    t = await Topic.create(m)
    for first in range(0, 1500, 50):
        t.produce(*((b"%d" % n, 60_000 + n) for n in range(first, first + 50)))
    first_page = await ask(t, LIST, max_records=5000)
    assert [row.offset for row in first_page.records] == list(range(1000))
    assert first_page.has_more
    last = first_page.records[-1]
    second = await ask(t, LIST, after_due_ms=last.due_ms, after_offset=last.offset)
    assert [row.offset for row in second.records] == list(range(1000, 1500))
    assert not second.has_more
    # A page has about 1 MiB: with values of 100 KB each, eleven.
    t = Topic(m, t.client)
    await t.client.create_topic("large", **{"kbroker.delay.enable": "true"})
    for _ in range(20):
        records = build_batch([(m.now_ms, None, bytes(100_000), [(DELAY_MS, b"60000")])])
        m.partition("large").append_as_leader(memoryview(records), -1, 12, m.now_ms, False)
    page = await ask(t, LIST, topic="large", include_payload=True)
    assert 10 <= len(page.records) < 15
    assert page.has_more
    assert len((await ask(t, LIST, topic="large")).records) == 20


@broker_test
async def test_cancelled_records_are_never_delivered_and_others_may_be_delivered_now(m: Machine) -> None:
    t = await Topic.create(m)
    t.produce((b"a", 5000), (b"b", 5000), (b"c", 5000))
    t.produce((b"visible", None))
    assert outcomes(await ask(t, CANCEL, 0, 3, 77)) == {
        0: ErrorCode.NONE,
        3: ErrorCode.INVALID_RECORD,
        77: ErrorCode.OFFSET_OUT_OF_RANGE,
    }
    assert outcomes(await ask(t, DELIVER, 2, 0)) == {0: ErrorCode.RESOURCE_NOT_FOUND, 2: ErrorCode.NONE}
    assert await t.seen() == [b"visible", b"c"]
    assert [row.offset for row in (await ask(t, LIST)).records] == [1]
    await m.crash()
    await m.start()
    await t.reconnect()
    assert outcomes(await ask(t, CANCEL, 2, 0)) == dict.fromkeys((0, 2), ErrorCode.RESOURCE_NOT_FOUND)
    await asyncio.sleep(10)
    assert await t.seen() == [b"visible", b"c", b"b"]
    response = await ask(t, DELIVER, 1)
    assert outcomes(response) == {1: ErrorCode.RESOURCE_NOT_FOUND}
    assert "not pending any more" in (response.results[0].error_message or "")


@broker_test
async def test_a_record_that_retention_has_moved_is_found_under_its_new_offset(m: Machine) -> None:
    t = await Topic.create(m, **{"retention.ms": "600000", "segment.ms": "60000", "file.delete.delay.ms": "0"})
    due = m.now_ms + 86_400_000
    t.append(build_batch([(m.now_ms, b"k", b"later", [(DELIVER_MS, b"%d" % due)])]))
    for _ in range(6):
        await asyncio.sleep(300)
        t.produce((b"tick", None))
    # The connection was idle for too long.
    await t.reconnect()
    (row,) = (await ask(t, LIST, include_payload=True)).records
    assert row.offset > 1
    assert (row.due_ms, row.key, row.value) == (due, b"k", b"later")
    assert [(header.name, header.value) for header in row.headers] == [(DELIVER_MS, b"%d" % due)]
    # Retention may move it again before the next request.
    assert outcomes(await ask(t, CANCEL, row.offset)) == {row.offset: ErrorCode.NONE}
    assert outcomes(await ask(t, CANCEL, 0)) == {0: ErrorCode.RESOURCE_NOT_FOUND}
    await m.restart()
    await t.reconnect()
    assert outcomes(await ask(t, CANCEL, 0)) == {0: ErrorCode.OFFSET_OUT_OF_RANGE}
    await asyncio.sleep(25 * HOUR)
    await t.reconnect()
    assert b"later" not in await t.seen()


@broker_test
async def test_a_record_that_retention_moves_between_two_pages_is_listed_with_both_offsets(m: Machine) -> None:
    t = await Topic.create(m, **{"retention.ms": "600000", "segment.ms": "60000", "file.delete.delay.ms": "0"})
    due = m.now_ms + 86_400_000
    for key in (b"a", b"b"):
        t.append(build_batch([(m.now_ms, key, b"later", [(DELIVER_MS, b"%d" % due)])]))
    page = await ask(t, LIST, max_records=1)
    assert [(row.key, row.offset, row.moved_from) for row in page.records] == [(b"a", 0, -1)]
    for _ in range(3):
        await asyncio.sleep(300)
        t.produce((b"tick", None))
    await t.reconnect()
    page = await ask(t, LIST, after_due_ms=due, after_offset=0)
    assert [(row.key, row.moved_from) for row in page.records] == [(b"a", 0), (b"b", 1)]
    assert all(row.offset > 1 for row in page.records)
    offsets = [row.offset for row in page.records]
    for _ in range(3):
        await asyncio.sleep(300)
        t.produce((b"tick", None))
    await t.reconnect()
    # They were moved again: each page has the offset at which a former one has listed them.
    for after_offset, moved_from in ((0, [0, offsets[1]]), (offsets[1], offsets)):
        page = await ask(t, LIST, after_due_ms=due, after_offset=after_offset)
        assert [(row.key, row.moved_from) for row in page.records] == [*zip((b"a", b"b"), moved_from, strict=True)]
        assert all(row.offset > offsets[1] for row in page.records)
    # The former offset still names it.
    assert outcomes(await ask(t, DELIVER, 0)) == {0: ErrorCode.NONE}
    assert b"later" in await t.seen()


@broker_test
async def test_records_of_open_transactions_are_counted_and_cannot_be_cancelled(m: Machine) -> None:
    t = await Topic.create(m)
    batch = t.records((b"a", 5000), producer_id=7, producer_epoch=0, base_sequence=0, attributes=TRANSACTIONAL)
    guard = t.partition.log.producers.begin_verification(7, 0, 0, True)
    t.partition.append_as_leader(memoryview(batch), -1, 12, m.now_ms, True, guard, True)
    listed = await ask(t, LIST)
    assert (listed.records, listed.pending_count, listed.open_transaction_count) == ([], 0, 1)
    assert outcomes(await ask(t, CANCEL, 0)) == {0: ErrorCode.CONCURRENT_TRANSACTIONS}
    marker = TransactionMarker(
        producer_id=7, producer_epoch=1, committed=True, coordinator_epoch=0, transaction_version=2
    )
    m.broker.services.replicas.append_marker(TopicPartition("t", 0), marker, lambda code: None)
    await m.until(lambda: len(t.delivery.state.pending) == 1)
    assert outcomes(await ask(t, CANCEL, 0)) == {0: ErrorCode.NONE}
    assert (await ask(t, LIST)).open_transaction_count == 0


@broker_test
async def test_requests_that_are_refused(m: Machine) -> None:
    t = await Topic.create(m)
    await t.client.create_topic("plain")
    plain = await ask(t, LIST, topic="plain")
    assert plain.error_code == ErrorCode.INVALID_REQUEST
    assert "kbroker.delay.enable" in (plain.error_message or "")
    assert (await ask(t, LIST, topic="absent")).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert (await ask(t, LIST, partition_index=1)).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert (await ask(t, 3)).error_code == ErrorCode.INVALID_REQUEST
    assert (await ask(t, LIST, max_records=-1)).error_code == ErrorCode.INVALID_REQUEST
    assert (await ask(t, CANCEL, *range(MAX_OFFSETS + 1))).error_code == ErrorCode.INVALID_REQUEST
    assert t.partition.log.log_end_offset == 0
