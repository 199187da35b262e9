"""ListOffsets by timestamp on a topic with delay finds what it finds on a plain topic with the records that consumers
see."""

import asyncio
from random import Random
from typing import Any

import pytest

from kbroker.api.k02_list_offsets import MAX_TIMESTAMP
from kbroker.queues.delay import delay_batches
from kbroker.replica.produce import slow_validation
from protocol.messages.k02_list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from protocol.records.batch import build_batch, parse_header
from tests.sampling import third_of
from tests.unit.queues.delay.test_delivery import DELAY_MS, Topic
from tests.unit.support.simulated_broker import Machine, broker_test

AHEAD_MS = 50_000


async def look_up(t: Topic, timestamp: int, topic: str = "t") -> tuple[int, int]:
    partition = ListOffsetsPartition(partition_index=0, timestamp=timestamp)
    topics = [ListOffsetsTopic(name=topic, partitions=[partition])]
    request = ListOffsetsRequest(replica_id=-1, isolation_level=0, topics=topics)
    response = await t.client.request(request, 7, ListOffsetsResponse)
    (found,) = response.topics[0].partitions
    assert found.error_code == 0
    return found.offset, found.timestamp


def rows(t: Topic, *records: tuple[int, int | None], **fields: Any) -> bytearray:
    """Build a batch of records with these timestamps, relative to now, and delays."""
    return build_batch(
        [
            (t.m.now_ms + at, b"k", b"v%d" % at, [] if delay is None else [(DELAY_MS, b"%d" % delay)])
            for at, delay in records
        ],
        **fields,
    )


@pytest.mark.parametrize("codec", [0, 1])
@broker_test
async def test_records_that_are_stamped_ahead_are_found(m: Machine, codec: int) -> None:
    t = await Topic.create(m)
    now = m.now_ms
    t.append(rows(t, (0, None)))
    # The delayed one is stamped later still, which consumers do not see.
    t.append(rows(t, (AHEAD_MS + 5, 1000), (-30, None), (AHEAD_MS, None), codec=codec))
    t.append(rows(t, (1, None), (2, 1000)))
    assert await look_up(t, now + 100) == (3, now + AHEAD_MS)
    assert await look_up(t, MAX_TIMESTAMP) == (3, now + AHEAD_MS)
    assert await look_up(t, now + AHEAD_MS + 1) == (-1, -1)
    assert await look_up(t, now - 30) == (0, now)
    assert [(offset, record.timestamp) for offset, record in (await t.fetch())[0]] == [
        (0, now),
        (2, now - 30),
        (3, now + AHEAD_MS),
        (4, now + 1),
    ]
    assert sorted(t.delivery.state.pending.after(None, 9)) == [(now + 1000, 1), (now + 1000, 5)]
    # A view has the timestamps of its source, and a new leader the same due times.
    await t.client.create_topic("view", -1, **{"kbroker.view.of": "t"})
    assert await look_up(t, now + 100, "view") == (3, now + AHEAD_MS)
    await m.crash(power=False)
    await m.start()
    await t.reconnect()
    await m.until(lambda: t.delivery.is_loaded)
    assert sorted(t.delivery.state.pending.after(None, 9)) == [(now + 1000, 1), (now + 1000, 5)]
    await m.until(lambda: t.delivery.state.count == 0)
    stored = {dict(record.headers)[delay_batches.TIMESTAMP] for offset, record in (await t.fetch())[0] if offset > 5}
    assert stored == {b"%d" % (now + AHEAD_MS + 5), b"%d" % (now + 2)}


@broker_test
async def test_pending_records_are_not_found(m: Machine) -> None:
    t = await Topic.create(m)
    now = m.now_ms
    t.append(rows(t, (-500, 3000)))
    t.append(rows(t, (-400, None), (-300, 60_000)))
    t.append(rows(t, (-200, 60_000)))
    assert await look_up(t, now - 1000) == (1, now - 400)
    assert await look_up(t, now - 399) == (-1, -1)
    assert await look_up(t, MAX_TIMESTAMP) == (1, now - 400)
    await asyncio.sleep(4)
    offset, delivered_ms = await look_up(t, now - 399)
    assert (offset, 3000 <= delivered_ms - now < 3100) == (4, True)
    assert await look_up(t, MAX_TIMESTAMP) == (offset, delivered_ms)


@broker_test
async def test_a_large_batch_that_is_stamped_ahead_is_rebuilt_in_a_thread(
    m: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slow_validation, "SMALL_DECOMPRESSED", 1000)
    monkeypatch.setattr(slow_validation, "SMALL", 1000)
    t = await Topic.create(m)
    now = m.now_ms
    records = [(10 * n, None if n % 3 else 5000) for n in range(1000)]
    answer = await t.client.produce("t", rows(t, *records, codec=1, producer_id=-1))
    assert answer.error_code == 0
    (segment,) = t.partition.log.segments
    assert segment.max_timestamp == now + 9980
    assert await look_up(t, now + 5001) == (502, now + 5020)
    assert t.delivery.state.count == 334
    assert parse_header(segment.read(61, 0, True)).base_timestamp >= now


@pytest.mark.parametrize("seed", third_of(range(9)))
@broker_test
async def test_lookups_agree_with_what_consumers_see(m: Machine, seed: int) -> None:
    random = Random(seed)
    t = await Topic.create(m, **{"internal.segment.bytes": "1000", "index.interval.bytes": random.choice(["0", "300"])})
    for _ in range(60):
        delays = [random.choice([None, 300, 3000, 3_600_000]) for _ in range(random.choice([1, 1, 3]))]
        stamped = [(random.randrange(-2000, 2000), delay) for delay in delays]
        t.append(rows(t, *stamped, codec=random.choice([0, 1])))
        await asyncio.sleep(random.choice([0.0, 0.01, 0.4]))
    # Those of 300 and 3,000 ms are delivered before consumers read: the lookups take a while, too.
    await asyncio.sleep(4)
    visible: list[tuple[int, int]] = []
    position = 0
    while True:
        found, following = await t.fetch(position)
        visible += [(offset, record.timestamp) for offset, record in found]
        if following == position:
            break
        position = following
    stamps = sorted({timestamp for _, timestamp in visible})
    for timestamp in {0, stamps[-1] + 1, *random.sample(stamps, 20)}:
        expected = next((row for row in visible if row[1] >= timestamp), (-1, -1))
        assert await look_up(t, timestamp) == expected
    assert await look_up(t, MAX_TIMESTAMP) == max(visible, key=lambda row: (row[1], -row[0]))
