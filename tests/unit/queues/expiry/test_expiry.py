"""Expiry in a broker: what consumers see and when, together with views, delay and idempotency keys."""

import asyncio

import pytest

from protocol.errors import ErrorCode
from protocol.messages.k02_list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from protocol.records.batch import TRANSACTIONAL, build_batch, iter_headers, parse_header
from tests.unit.support.client import Client, base_offsets, records_of, values_of
from tests.unit.support.simulated_broker import Machine, broker_test
from tests.unit.support.transactional_producer import init_producer

Header = tuple[bytes, bytes | None]


def ttl(value: int | None) -> list[Header]:
    return [] if value is None else [(b"TTL_MS", b"%d" % value)]


def records(m: Machine, *rows: tuple[bytes, int | None], codec: int = 0, **fields: int) -> bytearray:
    """Build a batch of (value, TTL in ms) with the current time."""
    return build_batch([(m.now_ms, None, value, ttl(ms)) for value, ms in rows], codec=codec, **fields)


async def enabled(m: Machine, **configs: object) -> Client:
    client = await m.client()
    await client.create_topic("t", **{"kbroker_ttl_enable": True, **configs})
    return client


@broker_test
async def test_consumers_do_not_see_expired_records(m: Machine) -> None:
    client = await enabled(m)
    for codec in range(5):
        await client.produce("t", records(m, (b"long", 5000), (b"short", 1000), (b"kept", None), codec=codec))
    assert await client.read("t") == [b"long", b"short", b"kept"] * 5
    await asyncio.sleep(2)
    assert await client.read("t") == [b"long", b"kept"] * 5
    await asyncio.sleep(4)
    assert await client.read("t") == [b"kept"] * 5
    # The log is as it was.
    assert m.partition("t").log.log_start_offset == 0
    await client.alter_topic("t", kbroker_ttl_enable=False)
    assert await client.read("t") == [b"long", b"short", b"kept"] * 5


@broker_test
async def test_the_position_moves_over_expired_records_and_a_wait_goes_on(m: Machine) -> None:
    client, producer = await enabled(m), await m.client()
    await client.produce("t", records(m, (b"a", 100), (b"b", 100)))
    await asyncio.sleep(1)
    data = await client.fetch_partition("t", 0, max_wait_ms=500)
    assert [header.next_offset for _, header in iter_headers(records_of(data))] == [2]
    assert parse_header(records_of(data)).is_control
    waiting = asyncio.ensure_future(client.fetch_partition("t", 0, max_wait_ms=60_000))
    await producer.produce("t", records(m, (b"gone", 0)))
    await asyncio.sleep(1)
    assert not waiting.done()
    await producer.produce("t", records(m, (b"c", 100)))
    assert values_of(await waiting) == [b"c"]


@broker_test
async def test_the_ttl_of_the_topic_is_for_records_without_the_header(m: Machine) -> None:
    client = await enabled(m, kbroker_ttl_ms=1000)
    await client.create_topic("u", kbroker_ttl_ms=1000)
    for topic in ("t", "u"):
        await client.produce(topic, records(m, (b"short", 100), (b"plain", None), (b"long", 5000)))
    await asyncio.sleep(0.5)
    assert await client.read("t") == [b"plain", b"long"]
    assert await client.read("u") == [b"short", b"plain", b"long"]
    await asyncio.sleep(1)
    assert await client.read("t") == [b"long"]
    assert await client.read("u") == []


@broker_test
async def test_log_append_time_counts(m: Machine) -> None:
    client = await enabled(m, message_timestamp_type="LogAppendTime")
    old = build_batch([(m.now_ms - 50_000, None, b"a", ttl(1000))])
    await client.produce("t", old)
    assert await client.read("t") == [b"a"]
    await asyncio.sleep(1.1)
    assert await client.read("t") == []


@broker_test
async def test_shared_responses_do_not_have_expired_records(m: Machine) -> None:
    client = await enabled(m)
    await client.create_topic("plain")
    await client.produce("t", records(m, (b"a", 1000)))
    await client.produce("plain", records(m, (b"a", 1000)))
    recent = m.broker.services.fetching.response_cache
    for _ in range(3):
        assert values_of(await client.fetch_partition("t", 0)) == [b"a"]
    assert len(recent) == 0
    # The same requests to an ordinary topic do share one, until the option is set.
    for _ in range(3):
        assert values_of(await client.fetch_partition("plain", 0)) == [b"a"]
    assert len(recent) == 1
    await asyncio.sleep(2)
    assert values_of(await client.fetch_partition("t", 0)) == []
    assert values_of(await client.fetch_partition("plain", 0)) == [b"a"]
    await client.alter_topic("plain", kbroker_ttl_enable=True)
    assert values_of(await client.fetch_partition("plain", 0)) == []
    assert len(recent) == 0


@broker_test
async def test_sessions(m: Machine) -> None:
    client = await enabled(m)
    await client.produce("t", records(m, (b"a", None)))
    first = await client.fetch({("t", 0): 0}, session=(0, 0))
    session = first.session_id
    await client.produce("t", records(m, (b"b", 100)))
    await client.produce("t", records(m, (b"c", None)))
    await asyncio.sleep(1)
    second = await client.fetch({("t", 0): 1}, session=(session, 1))
    assert values_of(second.responses[0].partitions[0]) == [b"c"]
    await client.produce("t", records(m, (b"d", 0)))
    # Only the position moves, and then there is nothing more.
    third = await client.fetch({("t", 0): 3}, session=(session, 2))
    assert base_offsets(third) == {("t", 0): [3]}
    assert (await client.fetch({("t", 0): 4}, session=(session, 3))).responses == []


@broker_test
async def test_malformed_headers_are_refused(m: Machine) -> None:
    client = await enabled(m)
    for count in (3, 3000):
        rows = [(m.now_ms, None, b"v", [] if n != 2 else [(b"TTL_MS", b"-5")]) for n in range(count)]
        result = await client.produce("t", build_batch(rows, codec=1 if count > 3 else 0))
        assert result.error_code == ErrorCode.INVALID_RECORD
        assert "Record 2 is invalid: the header TTL_MS is '-5'" in (result.error_message or "")
        assert [error.batch_index for error in result.record_errors] == [2]
        named = [(m.now_ms, None, b"v", [] if n != 2 else [(b"ttl_ms", b"5")]) for n in range(count)]
        result = await client.produce("t", build_batch(named, codec=1 if count > 3 else 0))
        assert result.error_code == ErrorCode.INVALID_RECORD
        assert "The header must be named TTL_MS, not ttl_ms" in (result.error_message or "")
    assert m.partition("t").log.log_end_offset == 0
    # Without the option the header has no meaning.
    await client.create_topic("plain", kbroker_ttl_ms=1000)
    rows = [(m.now_ms, None, b"v", [(b"TTL_MS", b"-5")])]
    assert (await client.produce("plain", build_batch(rows))).error_code == 0
    assert await client.read("plain") == [b"v"]


@broker_test
async def test_idempotent_producers_and_hidden_batches(m: Machine) -> None:
    client = await enabled(m)
    data = records(m, (b"a", 1000), producer_id=9, producer_epoch=0, base_sequence=0)
    assert (await client.produce("t", data)).base_offset == 0
    assert (await client.produce("t", data)).base_offset == 0
    assert m.partition("t").log.log_end_offset == 1


@broker_test
async def test_read_committed(m: Machine) -> None:
    client = await enabled(m)
    producer = await init_producer(m)
    for number, committed in enumerate((False, True)):
        rows = ((b"%d-gone" % number, 100), (b"%d-kept" % number, None))
        data = records(
            m, *rows, attributes=TRANSACTIONAL, producer_id=producer.producer_id, producer_epoch=producer.epoch,
            base_sequence=0,
        )  # fmt: skip
        producer.client.ids.update(client.ids)
        ((response,),) = await producer.send_all({"t": {0: data}}, version=12)
        assert response.error_code == 0
        assert await (producer.commit() if committed else producer.abort()) == 0
        await producer.wait_until_completed()
    await asyncio.sleep(1)
    fetched = await client.fetch_partition("t", 0, isolation_level=1)
    assert [row.producer_id for row in fetched.aborted_transactions or ()] == [producer.producer_id]
    # The client drops those of the aborted transaction.
    assert values_of(fetched) == [b"0-kept", b"1-kept"]


@broker_test
async def test_views_hide_expired_records(m: Machine) -> None:
    client = await enabled(m)
    await client.create_topic("v", -1, kbroker_view_of="t", kbroker_view_filter="paid")
    rows: list[tuple[bytes, list[Header]]] = [
        (b"1", [(b"TAGS", b"paid"), *ttl(100)]), (b"2", [(b"TAGS", b"paid")]), (b"3", ttl(100)),
    ]  # fmt: skip
    await client.produce("t", build_batch([(m.now_ms, None, value, headers) for value, headers in rows]))
    assert await client.read("v") == [b"1", b"2"]
    await asyncio.sleep(1)
    assert await client.read("v") == [b"2"]
    for _ in range(3):
        assert values_of(await client.fetch_partition("v", 0)) == [b"2"]
    assert len(m.broker.services.fetching.response_cache) == 0


@broker_test
async def test_the_ttl_of_a_delayed_record_counts_from_its_delivery(m: Machine) -> None:
    client = await enabled(m, kbroker_delay_enable=True)
    headers = [(b"TIMER_DELAY_MS", b"5000"), *ttl(1000)]
    await client.produce("t", build_batch([(m.now_ms, None, b"late", headers), (m.now_ms, None, b"now", ttl(2000))]))
    assert await client.read("t") == [b"now"]
    await asyncio.sleep(4)
    assert await client.read("t") == []
    await asyncio.sleep(1.5)
    assert await client.read("t") == [b"late"]
    await asyncio.sleep(1)
    assert await client.read("t") == []
    for bad in ([(b"TIMER_DELAY_MS", b"5000"), (b"TTL_MS", b"x")], [(b"TIMER_DELAY_MS", b"x"), *ttl(1)]):
        result = await client.produce("t", build_batch([(m.now_ms, None, b"bad", bad)]))
        assert result.error_code == ErrorCode.INVALID_RECORD


@broker_test
async def test_the_options_of_a_topic_change_while_it_is_used(m: Machine) -> None:
    client = await m.client()
    await client.create_topic("t")
    partition = m.partition("t")
    assert (partition.read_filter, partition.append_extension) == (None, None)
    await client.produce("t", records(m, (b"a", 100)))
    await asyncio.sleep(1)
    assert await client.read("t") == [b"a"]
    await client.alter_topic("t", kbroker_ttl_enable=True)
    assert await client.read("t") == []
    await client.alter_topic("t", kbroker_delay_enable=True)
    delayed = build_batch([(m.now_ms, None, b"b", [(b"TIMER_DELAY_MS", b"1000"), *ttl(1000)])])
    await client.produce("t", delayed)
    assert await client.read("t") == []
    await asyncio.sleep(1.1)
    assert await client.read("t") == [b"b"]
    # Delay stays when expiry ends, with what it has hidden.
    await client.alter_topic("t", kbroker_ttl_enable=False)
    assert await client.read("t") == [b"a", b"b"]
    await client.produce("t", build_batch([(m.now_ms, None, b"c", [(b"TIMER_DELAY_MS", b"1000"), (b"TTL_MS", b"x")])]))
    assert await client.read("t") == [b"a", b"b"]
    await asyncio.sleep(1.1)
    assert await client.read("t") == [b"a", b"b", b"c"]
    await client.alter_topic("t", kbroker_ttl_ms=500)
    assert await client.read("t") == [b"c"]
    await m.restart()
    await asyncio.sleep(0.5)
    assert await (await m.client()).read("t") == []


@broker_test
async def test_the_options_change_while_a_large_batch_is_inspected(m: Machine) -> None:
    client, other = await enabled(m), await m.client()
    large = build_batch([(m.now_ms, None, b"x" * 100, [(b"TIMER_DELAY_MS", b"1000")]) for _ in range(3000)], codec=1)
    m.threads.held.add("decompress_mapped")
    sending = client.send_produce("t", large)
    await other.alter_topic("t", kbroker_delay_enable=True)
    assert not sending.done()
    m.threads.release("decompress_mapped")
    result = await sending
    assert (result.error_code, result.base_offset) == (0, 0)
    assert await other.read("t") == []
    await asyncio.sleep(3)
    assert len(await other.read("t")) == 3000


@broker_test
async def test_idempotency_keys_and_ttl(m: Machine) -> None:
    client = await enabled(m, kbroker_dedup_window_ms=60_000)
    key: Header = (b"IDEMPOTENCY_KEY", b"1")
    await client.produce("t", build_batch([(m.now_ms, None, b"a", [key, *ttl(1000)])]))
    await client.produce("t", build_batch([(m.now_ms, None, b"a", [key, *ttl(1000)])]))
    assert await client.read("t") == [b"a"]
    result = await client.produce("t", build_batch([(m.now_ms, None, b"b", [(b"TTL_MS", b"")])]))
    assert result.error_code == ErrorCode.INVALID_RECORD
    await asyncio.sleep(2)
    assert await client.read("t") == []


@broker_test
async def test_list_offsets_does_not_change(m: Machine) -> None:
    client = await enabled(m)
    await client.produce("t", records(m, (b"a", 100), (b"b", 100)))
    await asyncio.sleep(1)
    for timestamp, expected in ((-2, 0), (-1, 2), (m.now_ms - 60_000, 0)):
        partition = ListOffsetsPartition(partition_index=0, timestamp=timestamp)
        request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name="t", partitions=[partition])])
        listed = await client.request(request, 7, ListOffsetsResponse)
        assert listed.topics[0].partitions[0].offset == expected


@broker_test
async def test_what_is_refused(m: Machine) -> None:
    client = await enabled(m)
    await client.create_topic("compacted", cleanup_policy="compact")
    await client.create_topic("v", -1, kbroker_view_of="t")
    await client.create_topic("__consumer_offsets", cleanup_policy="delete")
    for topic, configs, text in (
        ("compacted", {"kbroker_ttl_enable": True}, "tombstone"),
        ("compacted", {"kbroker_ttl_ms": 1}, "tombstone"),
        ("t", {"cleanup_policy": "compact"}, "tombstone"),
        ("t", {"kbroker_ttl_ms": -1}, "kbroker.ttl.ms"),
        ("v", {"kbroker_ttl_ms": 1}, "A view has only"),
        ("__consumer_offsets", {"kbroker_ttl_ms": 1}, "internal topic"),
        ("__consumer_offsets", {"kbroker_delay_enable": True}, "internal topic"),
    ):
        with pytest.raises(AssertionError, match=text):
            await client.alter_topic(topic, **configs)
    with pytest.raises(AssertionError, match="internal topic"):
        await client.create_topic("__transaction_state", kbroker_ttl_enable=True)
