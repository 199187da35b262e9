"""Fetches of partitions with a read filter: what consumers see, how their position moves, and how long polls wait."""

import asyncio

import pytest

from kbroker.common import Buffer
from kbroker.queues.closing.forwarded_batches import ClosingFilter
from kbroker.replica.fetch import filter_scan
from kbroker.replica.fetch.read_filter import combine
from protocol.records.batch import HIDDEN, NO_LEADER_EPOCH, BatchHeader, iter_headers, parse_header, patch_max_timestamp
from tests.unit.support.client import Client, batch, records_of, values_of
from tests.unit.support.simulated_broker import Machine, broker_test

HIDDEN_BATCHES = ClosingFilter(NO_LEADER_EPOCH)


def hidden(*values: bytes, size: int = 0, producer: tuple[int, int, int] | None = None) -> bytearray:
    data = batch(*values, size=size, producer=producer)
    header = parse_header(data)
    patch_max_timestamp(data, 0, header.size, header.attributes | HIDDEN, header.max_timestamp)
    return data


async def filtered_topic(m: Machine, client: Client) -> None:
    await client.create_topic("t")
    m.partition("t").read_filter = HIDDEN_BATCHES


def headers_of(records: bytes) -> list[tuple[int, int]]:
    """Return (base offset, record count) of each batch."""
    return [(header.base_offset, header.count) for _, header in iter_headers(records)]


@broker_test
async def test_hidden_batches_are_not_sent(m: Machine) -> None:
    client = await m.client()
    await filtered_topic(m, client)
    for produced in (batch(b"a"), hidden(b"h"), batch(b"b"), batch(b"c"), hidden(b"i", b"j")):
        await client.produce("t", produced)
    data = await client.fetch_partition("t", 0)
    assert values_of(data) == [b"a", b"b", b"c"]
    # What was dropped at the end is covered by a control batch.
    assert headers_of(records_of(data)) == [(0, 1), (2, 1), (3, 1), (5, 1)]
    assert data.high_watermark == 6
    assert await client.read("t") == [b"a", b"b", b"c"]


@broker_test
async def test_a_control_batch_moves_the_position_at_the_end_of_the_wait(m: Machine) -> None:
    client = await m.client()
    await filtered_topic(m, client)
    await client.produce("t", hidden(b"h", b"i"))
    began = m.elapsed_ms
    data = await client.fetch_partition("t", 0, max_wait_ms=500)
    assert m.elapsed_ms - began >= 500
    assert headers_of(records_of(data)) == [(1, 1)]
    assert parse_header(records_of(data)).is_control
    data = await client.fetch_partition("t", 2, max_wait_ms=0)
    assert records_of(data) == b""


class CountingFilter:
    """Hides batches, and records the base offsets that it was asked for."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    def filter_batch(self, batch: memoryview, header: BatchHeader, now_ms: int, max_bytes: int) -> Buffer | None:
        self.seen.append(header.base_offset)
        return HIDDEN_BATCHES.filter_batch(batch, header, now_ms, max_bytes)


@broker_test
async def test_a_wait_goes_on_while_everything_new_is_hidden_and_looks_at_each_batch_once(m: Machine) -> None:
    client, producer = await m.client(), await m.client()
    await client.create_topic("t")
    counting = m.partition("t").read_filter = CountingFilter()
    await producer.produce("t", hidden(b"h"))
    waiting = asyncio.ensure_future(client.fetch_partition("t", 0, max_wait_ms=60_000))
    for _ in range(4):
        await producer.produce("t", hidden(b"h"))
        await asyncio.sleep(1)
    assert not waiting.done()
    # Not twice: the wait does not spin, and does not look again at what it has skipped.
    assert counting.seen == [0, 1, 2, 3, 4]
    await producer.produce("t", batch(b"a"))
    assert values_of(await waiting) == [b"a"]
    assert m.elapsed_ms < 10_000


@broker_test
async def test_sessions_move_on_and_become_idle(m: Machine) -> None:
    client, producer = await m.client(), await m.client()
    await filtered_topic(m, client)
    await producer.produce("t", hidden(b"h"))
    first = await client.fetch({("t", 0): 0}, session=(0, 0), max_wait_ms=0)
    assert headers_of(records_of(first.responses[0].partitions[0])) == [(0, 1)]
    session = first.session_id
    assert (await client.fetch({("t", 0): 1}, session=(session, 1), max_wait_ms=0)).responses == []
    waiting = asyncio.ensure_future(client.fetch({}, session=(session, 2), max_wait_ms=60_000))
    await producer.produce("t", hidden(b"h"))
    await asyncio.sleep(1)
    assert not waiting.done()
    await producer.produce("t", batch(b"a"))
    response = await waiting
    assert values_of(response.responses[0].partitions[0]) == [b"a"]


@broker_test
async def test_the_budget_ends_a_read(m: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filter_scan, "MAX_LOOK_BYTES", 10_000)
    client = await m.client()
    await filtered_topic(m, client)
    for _ in range(30):
        await client.produce("t", hidden(b"h", size=1_000))
    await client.produce("t", batch(b"a"))
    began = m.elapsed_ms
    data = await client.fetch_partition("t", 0, max_wait_ms=60_000)
    # It does not wait, since there is more to look through.
    assert m.elapsed_ms - began < 1_000
    [(position, count)] = headers_of(records_of(data))
    assert count == 1
    assert parse_header(records_of(data)).is_control
    assert 8 <= position <= 11
    assert await client.read("t") == [b"a"]


@broker_test
@pytest.mark.parametrize("is_cold", [False, True])
async def test_the_partitions_that_the_budget_does_not_reach_come_first_in_the_next_response(
    m: Machine, monkeypatch: pytest.MonkeyPatch, is_cold: bool
) -> None:
    monkeypatch.setattr(filter_scan, "MAX_LOOK_BYTES", 3_000)
    client = await m.client()
    await client.create_topic("t", 3)
    for index in range(3):
        m.partition("t", index).read_filter = CountingFilter()
        for _ in range(4):
            await client.produce("t", hidden(b"h", size=1_000), index)
        await client.produce("t", batch(b"a"), index)
        if is_cold:
            monkeypatch.setattr(filter_scan, "read", lambda *_: None)
    positions = {("t", index): 0 for index in range(3)}
    session = (0, 0)
    looked_at = []
    for epoch in range(1, 6):
        response = await client.fetch(positions, session=session, max_wait_ms=60_000)
        session = (response.session_id, epoch)
        moved = [data for topic in response.responses for data in topic.partitions if records_of(data)]
        looked_at.append([data.partition_index for data in moved])
        for data in moved:
            [(position, _)] = headers_of(records_of(data))
            positions["t", data.partition_index] = position + 1
    assert looked_at == [[0], [1], [2], [0, 1, 2], [2]]
    assert set(positions.values()) == {5}
    assert m.elapsed_ms < 1_000


@broker_test
async def test_reads_from_disk_are_filtered_in_a_thread(m: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    client = await m.client()
    await filtered_topic(m, client)
    for produced in (batch(b"a"), hidden(b"h"), batch(b"b")):
        await client.produce("t", produced)
    monkeypatch.setattr(filter_scan, "read", lambda *_: None)
    assert await client.read("t") == [b"a", b"b"]
    assert m.threads.started["read_cold_blocking"] >= 1


@broker_test
async def test_max_bytes_count_what_is_sent(m: Machine) -> None:
    client = await m.client()
    await filtered_topic(m, client)
    for number in range(10):
        await client.produce("t", hidden(b"h", size=5_000))
        await client.produce("t", batch(b"%d" % number, size=1_000))
    data = await client.fetch_partition("t", 0, max_bytes=3_500)
    assert len(values_of(data)) in (2, 3)
    assert [value[:1] for value in await client.read("t")] == [b"%d" % number for number in range(10)]


@broker_test
async def test_ordinary_topics_send_batches_with_the_bit(m: Machine) -> None:
    client = await m.client()
    await client.create_topic("t")
    await client.produce("t", hidden(b"h"))
    assert await client.read("t") == [b"h"]


def test_filters_combine() -> None:
    class Emptied:
        def filter_batch(self, batch: memoryview, header: BatchHeader, now_ms: int, max_bytes: int) -> Buffer | None:
            return memoryview(batch)[: header.size] if header.count else None

    assert combine() is None
    assert combine(None, HIDDEN_BATCHES) is HIDDEN_BATCHES
    both = combine(HIDDEN_BATCHES, Emptied())
    assert both is not None
    for data, expected in ((batch(b"a"), True), (hidden(b"a"), False)):
        kept = both.filter_batch(memoryview(data), parse_header(data), 0, 1 << 20)
        assert (kept is not None) == expected
