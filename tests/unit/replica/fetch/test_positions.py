"""How positions move over hidden records: by which batches, of which leader epoch, and if a client does not follow."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable

import pytest

from kbroker.queues.closing.forwarded_batches import ClosingFilter
from kbroker.replica.fetch import filter_scan
from kbroker.replica.fetch.read_filter import FilterSequence, HiddenRanges, PositionForm, ReadFilter, position_batch
from protocol.records.batch import NO_LEADER_EPOCH, BatchHeader, build_batch, iter_batch_records, iter_headers
from protocol.records.compression import GZIP
from tests.unit.replica.fetch.test_filter_scan import CountingFilter, filtered_topic, hidden
from tests.unit.support.client import Client, batch, records_of, values_of
from tests.unit.support.simulated_broker import Machine, broker_test
from tests.unit.support.views import Tagged, create_view, tagged

CONTROL, EMPTY, EMPTY_GZIP = PositionForm

# Hidden on a topic with any of these features; an idempotency key, because it was sent before.
HIDDEN = [(b"TAGS", b"open"), (b"TTL_MS", b"0"), (b"TIMER_DELAY_SEC", b"3600"), (b"IDEMPOTENCY_KEY", b"k")]
VISIBLE = [(b"TAGS", b"paid"), (b"IDEMPOTENCY_KEY", b"k")]


async def viewed(client: Client) -> str:
    await client.create_topic("orders")
    await create_view(client)
    return "paid"


async def expiring(client: Client) -> str:
    await client.create_topic("orders", kbroker_ttl_enable=True)
    return "orders"


async def deduplicated(client: Client) -> str:
    await client.create_topic("orders", kbroker_dedup_window_ms=3_600_000)
    return "orders"


async def delayed(client: Client) -> str:
    await client.create_topic("orders", kbroker_delay_enable=True)
    return "orders"


class Sender:
    """An idempotent producer, so that a deduplicated batch stays without records."""

    def __init__(self, m: Machine) -> None:
        self._m, self._sequence = m, 0

    async def send(self, headers: list[tuple[bytes, bytes]]) -> None:
        rows = [(self._m.now_ms, None, b"v", headers)]
        data = build_batch(rows, producer_id=7, producer_epoch=0, base_sequence=self._sequence)
        self._sequence += 1
        assert (await (await self._m.client()).produce("orders", data)).error_code == 0


def headers_of(records: bytes) -> list[BatchHeader]:
    return [header for _, header in iter_headers(records)]


@broker_test
@pytest.mark.parametrize("create", [viewed, expiring, deduplicated, delayed])
@pytest.mark.parametrize(("version", "isolation"), [(4, 0), (10, 1), (12, 0), (12, 1)])
async def test_each_batch_has_the_leader_epoch_of_the_log(
    m: Machine, create: Callable[[Client], Awaitable[str]], version: int, isolation: int
) -> None:
    client = await m.client()
    topic = await create(client)
    sender = Sender(m)
    await sender.send(VISIBLE)
    await m.restart()
    await sender.send(HIDDEN)

    async def check(offset: int, expected: list[tuple[int, bool]], max_wait_ms: int = 0) -> None:
        """`expected`: (last offset, is a record) of each batch of a response."""
        options = {"version": version, "isolation_level": isolation, "max_wait_ms": max_wait_ms}
        data = await (await m.client()).fetch_partition(topic, offset, **options)
        headers = headers_of(records_of(data))
        assert [(header.last_offset, header.producer_id >= 0) for header in headers] == expected
        epochs = m.partition("orders").log.epochs
        for header in headers:
            # kafka-go and rskafka do not skip control batches, and nobody uses transactions here.
            assert header.is_control == (version > 10 and header.producer_id < 0)
            assert header.leader_epoch == epochs.epoch_for(header.last_offset) >= 0

    waiting = asyncio.ensure_future(check(1, [(2, False)], max_wait_ms=500))
    await asyncio.sleep(0.1)
    await sender.send(HIDDEN)
    await waiting
    assert len(m.partition("orders").log.epochs.entries) == 2
    await check(0, [(0, True), (2, False)])
    await check(1, [(2, False)])
    await check(2, [(2, False)])
    await check(3, [])


@broker_test
@pytest.mark.parametrize(
    ("version", "in_session", "form"),
    [
        (4, False, EMPTY),
        (5, False, EMPTY_GZIP),
        (10, False, EMPTY_GZIP),
        (10, True, EMPTY),
        (11, False, CONTROL),
        (12, True, CONTROL),
    ],
)
async def test_the_form_depends_on_the_request(m: Machine, version: int, in_session: bool, form: PositionForm) -> None:
    client = await m.client()
    await filtered_topic(m, client)
    await client.produce("t", hidden(b"h"))
    response = await client.fetch({("t", 0): 0}, version=version, session=(0, 0) if in_session else (0, -1))
    partition = m.partition("t")
    assert records_of(response.responses[0].partitions[0]) == position_batch(form, 0, partition.state.leader_epoch)
    # After a record, no bytes are needed behind the header.
    await client.produce("t", batch(b"a"))
    await client.produce("t", hidden(b"h"))
    data = await client.fetch_partition("t", 0, version=version)
    after = CONTROL if form is CONTROL else EMPTY
    assert records_of(data).endswith(position_batch(after, 2, partition.state.leader_epoch))


@pytest.mark.parametrize("form", [EMPTY, EMPTY_GZIP])
def test_an_empty_batch_has_no_records(form: PositionForm) -> None:
    data = position_batch(form, 1 << 40, 7)
    [header] = headers_of(bytes(data))
    assert (header.base_offset, header.last_offset, header.leader_epoch, header.count) == (1 << 40, 1 << 40, 7, 0)
    assert list(iter_batch_records(data, header)) == []
    if form is EMPTY_GZIP:
        # kafka-go reads it as the header of a batch, and accepts the magic bytes 0 to 2.
        assert data[61 + 16] == 0


@broker_test
async def test_a_client_that_stays_at_its_offset_passes_more_than_one_fetch_scans(
    m: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filter_scan, "MAX_LOOK_BYTES", 3_000)
    client = await m.client()
    await client.create_topic("t")
    counting = m.partition("t").read_filter = CountingFilter()
    for _ in range(20):
        await client.produce("t", hidden(b"h", size=1_000))
    await client.produce("t", batch(b"a"))
    staying = [0, 4, 9]
    for _ in range(8):
        for offset in list(staying):
            values = values_of(await client.fetch_partition("t", offset))
            assert values in ([], [b"a"])
            if values:
                staying.remove(offset)
    assert staying == []
    # Each of the three has scanned a batch once.
    assert max(Counter(counting.seen).values()) <= 3


@broker_test
async def test_what_was_hidden_counts_only_for_its_filter_and_log(m: Machine) -> None:
    client = await m.client()
    await filtered_topic(m, client)
    await client.produce("t", batch(b"a"))
    partition = m.partition("t")
    hides_all = CountingFilter()
    hides_all.filter_batch = lambda *_: None  # type: ignore[method-assign]
    partition.read_filter = hides_all
    assert values_of(await client.fetch_partition("t", 0)) == []
    partition.read_filter = ClosingFilter(NO_LEADER_EPOCH)
    assert values_of(await client.fetch_partition("t", 0)) == [b"a"]
    await client.produce("t", hidden(b"h"))
    assert values_of(await client.fetch_partition("t", 1)) == []
    # A truncation, after which other records have these offsets.
    await partition.follower_truncate(1)
    await client.produce("t", batch(b"b"))
    assert values_of(await client.fetch_partition("t", 1)) == [b"b"]


@broker_test
@pytest.mark.parametrize("codec", [0, GZIP])
@pytest.mark.parametrize("is_cold", [False, True])
async def test_a_batch_without_a_record_from_the_fetch_offset_on_is_not_sent(
    m: Machine, monkeypatch: pytest.MonkeyPatch, is_cold: bool, codec: int
) -> None:
    """rskafka, whose next offset follows its last record, would receive the same batch again and again."""
    client = await m.client()
    await client.create_topic("orders")
    await create_view(client)
    rows: list[Tagged] = [(b"a", b"paid", None), (b"b", b"open", None), (b"c", b"paid", None), (b"d", b"open", None)]
    await client.produce("orders", tagged(*rows, codec=codec))
    if is_cold:
        monkeypatch.setattr(filter_scan, "read", lambda *_: None)
    assert values_of(await client.fetch_partition("paid", 1)) == [b"a", b"c"]
    [header] = headers_of(records_of(await client.fetch_partition("paid", 3, version=4)))
    assert (header.last_offset, header.count) == (3, 0)
    await client.produce("orders", tagged((b"e", b"paid", None)))
    assert values_of(await client.fetch_partition("paid", 3)) == [b"e"]


def test_hidden_ranges_grow_and_are_bounded() -> None:
    a, b = ClosingFilter(1), ClosingFilter(2)
    ranges = HiddenRanges(object())
    ranges.add(a, 10, 20)
    ranges.add(a, 15, 30)
    ranges.add(a, 30, 40)
    assert [ranges.end_of(a, offset) for offset in (9, 10, 39, 40)] == [9, 40, 40, 40]
    assert ranges.end_of(b, 10) == 10
    # A shorter scan does not shrink a range.
    ranges.add(a, 10, 12)
    assert ranges.end_of(a, 10) == 40
    for start in range(100, 116):
        ranges.add(b, 10 * start, 10 * start + 1)
    assert ranges.end_of(a, 10) == 10
    assert [ranges.end_of(b, 10 * start) for start in range(100, 116)] == [10 * start + 1 for start in range(100, 116)]


def test_filters_of_a_view_are_equal_in_each_fetch() -> None:
    own: ReadFilter = ClosingFilter(1)
    view = ClosingFilter(2)
    assert FilterSequence((own, view)) == FilterSequence((own, view))
    assert FilterSequence((own, view)) != FilterSequence((own, ClosingFilter(2)))
