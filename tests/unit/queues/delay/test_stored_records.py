"""Reading pending records: what is read and decoded does not depend on how the records came."""

import asyncio
from collections import Counter
from random import Random
from typing import Any

import pytest

from kbroker.queues.delay import delivery, snapshots, stored_records
from kbroker.queues.delay.delay_batches import effects_of, pick_records
from kbroker.queues.delay.stored_records import StoredRecords
from protocol.errors import MalformedError
from protocol.records.batch import build_batch
from tests.unit.queues.delay.test_delivery import DELIVER_MS, Topic
from tests.unit.support.simulated_broker import Machine, broker_test

RECORDS = 2400


class Counts(Counter[str]):
    """Counts the reads of the log, the decoded batches and the decoded records."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        real_read = stored_records.read

        def read(*args: Any, **named: Any) -> Any:
            self["reads"] += 1
            return real_read(*args, **named)

        def pick(body: bytes, header: Any, offsets: Any) -> Any:
            self["batches"] += 1
            self["records"] += len(offsets)
            return pick_records(body, header, offsets)

        monkeypatch.setattr(stored_records, "read", read)
        monkeypatch.setattr(stored_records, "pick_records", pick)


async def fill(t: Topic, records: int, per_batch: int, is_scattered: bool, size: int = 10, codec: int = 0) -> list[int]:
    """Append records that are due within a second, in five seconds. Returns their due times by offset."""
    start = t.m.now_ms + 5000
    dues = [start + number * 1000 // records for number in range(records)]
    if is_scattered:
        Random(1).shuffle(dues)
    for at in range(0, records, per_batch):
        rows = [
            (t.m.now_ms, None, b"%d " % (at + n) + bytes(size), [(DELIVER_MS, b"%d" % due)])
            for n, due in enumerate(dues[at : at + per_batch])
        ]
        answer = await t.client.produce("t", build_batch(rows, codec=codec))
        assert answer.error_code == 0
    await t.m.until(lambda: t.delivery.state.count == records)
    return dues


async def numbers(t: Topic) -> list[int]:
    return [int((value or b"").split()[0]) for value in await t.seen()]


@pytest.mark.parametrize("is_scattered", [False, True])
@pytest.mark.parametrize("per_batch", [800, 100, 1])
@broker_test
async def test_batches_are_decoded_a_few_times_and_neighbours_are_read_at_once(
    m: Machine, monkeypatch: pytest.MonkeyPatch, per_batch: int, is_scattered: bool
) -> None:
    t = await Topic.create(m)
    dues = await fill(t, RECORDS, per_batch, is_scattered, codec=int(per_batch == 100))
    counts = Counts(monkeypatch)
    await m.until(lambda: t.delivery.state.count == 0)
    # Windows of 100, 800 and the other records.
    assert counts["records"] == RECORDS
    assert counts["batches"] <= min(3 * RECORDS // per_batch, RECORDS) + 3
    assert counts["reads"] <= RECORDS // 4
    expected = sorted(range(RECORDS), key=lambda offset: (dues[offset], offset))
    assert await numbers(t) == expected


@broker_test
async def test_records_that_do_not_fit_are_read_again(m: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_records, "MAX_READY_BYTES", 100_000)
    t = await Topic.create(m)
    dues = await fill(t, 200, 20, True, size=5000)
    counts = Counts(monkeypatch)
    stored, largest = t.delivery._stored, 0

    def is_delivered() -> bool:
        nonlocal largest
        largest = max(largest, stored._ready_bytes)
        return t.delivery.state.count == 0

    await m.until(is_delivered)
    assert 50_000 < largest <= 100_000
    # The first window is too large; those after it have as many records as fit.
    assert 200 < counts["records"] < 700
    assert await numbers(t) == sorted(range(200), key=lambda at: (dues[at], at))
    assert stored._ready_bytes == 0


@broker_test
async def test_a_batch_that_cannot_be_read_delays_only_what_is_due_after_it(
    m: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    t = await Topic.create(m)

    def pick(body: bytes, header: Any, offsets: Any) -> Any:
        if header.base_offset == 2 and is_damaged:
            raise MalformedError("damaged")
        return pick_records(body, header, offsets)

    monkeypatch.setattr(stored_records, "pick_records", pick)
    is_damaged = True
    for n, delay in enumerate((3000, 1000, 2000, 1500)):
        t.produce((b"%d" % n, delay))
    await asyncio.sleep(6)
    assert await t.seen() == [b"1", b"3"]
    is_damaged = False
    await t.until_seen(b"1", b"3", b"2", b"0")


@broker_test
async def test_a_record_that_is_due_earlier_is_read_when_it_arrives(m: Machine) -> None:
    t = await Topic.create(m)
    for _ in range(10):
        t.produce(*((b"late%d" % n, 3000) for n in range(30)))
    await asyncio.sleep(2.5)
    t.produce((b"early", 10))
    t.produce((b"cancelled", 20))
    await asyncio.sleep(0.1)
    assert await t.seen() == [b"early", b"cancelled"]
    assert isinstance(t.delivery._stored, StoredRecords)


@broker_test
async def test_a_record_that_is_cancelled_while_it_is_read_is_not_kept(m: Machine) -> None:
    t = await Topic.create(m)
    t.append(t.records((b"a", 60_000), (b"b", 60_000)))
    await m.until(lambda: t.delivery.state.count == 2)
    stored = StoredRecords(m.broker.environment, t.partition.log)
    entries = t.delivery.state.pending.after(None, 9)
    reading = asyncio.ensure_future(stored.prepare(entries))
    await asyncio.sleep(0)
    stored.forget(entries[:1])
    await reading
    assert not stored.has_all(entries[:1])
    assert stored.has_all(entries[1:])
    stored.forget(entries)
    assert stored._ready_bytes == 0


@broker_test
async def test_retention_decodes_each_batch_once(m: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "DELIVERY_SLICE", 7)
    t = await Topic.create(m, **{"retention.ms": "600000", "segment.ms": "60000", "file.delete.delay.ms": "0"})
    later = m.now_ms + 3 * 3_600_000
    dues = [later + n * 7919 % 500 for n in range(400)]
    for at in range(0, 400, 20):
        rows = [(m.now_ms, None, b"%d" % (at + n), [(DELIVER_MS, b"%d" % due)]) for n, due in enumerate(dues[at:][:20])]
        t.append(build_batch(rows))
    decoded: Counter[int] = Counter()

    def counted(batch: Any, body: Any, header: Any, levels: Any) -> Any:
        decoded[header.base_offset] += 1
        return effects_of(batch, body, header, levels)

    monkeypatch.setattr(delivery, "effects_of", counted)
    for _ in range(6):
        await asyncio.sleep(300)
        t.produce((b"tick", None))
    await m.until(lambda: t.partition.log.log_start_offset >= 400)
    assert [decoded[at] for at in range(0, 400, 20)] == [1] * 20
    assert [due for due, _ in t.delivery.state.pending.after(None, 500)] == sorted(dues)
    await asyncio.sleep((later - m.now_ms) / 1000 + 2)
    await t.reconnect()
    moved = [int(value or b"") for value in await t.seen() if value != b"tick"]
    assert moved == sorted(range(400), key=lambda n: (dues[n], n))


@broker_test
async def test_a_large_transaction_becomes_pending_in_slices(m: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "COMMITTED_AT_ONCE", 10)
    t = await Topic.create(m)
    state = t.delivery.state
    state.open[7] = [(5, 5), (6, 6), (3, 7)]
    assert state.commit_some(7, 2)
    assert (state.pending.after(None, 9), state.open[7]) == ([(3, 7), (6, 6)], [(5, 5)])
    assert not state.commit_some(7, 2)
    assert not state.commit_some(8, 2)
    assert state.pending.after(None, 9) == [(3, 7), (5, 5), (6, 6)]
