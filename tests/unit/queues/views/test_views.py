"""Fetches of a view: the records that consumers see."""

import asyncio
from random import Random

import pytest

from protocol.errors import ErrorCode
from protocol.messages.k37_create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
)
from protocol.records.batch import TRANSACTIONAL, assemble_batch, iter_headers, parse_header
from tests.unit.support.client import records_of, values_of
from tests.unit.support.simulated_broker import Machine, broker_test
from tests.unit.support.transactional_producer import init_producer
from tests.unit.support.views import Tagged, create_view, describe, tagged


@broker_test
async def test_a_view_has_the_records_with_its_tags(m: Machine) -> None:
    client = await m.client()
    await client.create_topic("orders", 2)
    await create_view(client, "paid", "paid || KEYS in (k1, k2)")
    await client.produce("orders", tagged((b"1", b"paid", None), (b"2", b"open", None), (b"paid", None, b"x k2")), 1)
    await client.produce("orders", tagged((b"\x08TAGS\x08paid", None, None), (b"k1", b"open", b"k11")), 1)
    assert await client.read("paid", partition=1) == [b"1", b"paid"]
    assert await client.read("orders", partition=1) == [b"1", b"2", b"paid", b"\x08TAGS\x08paid", b"k1"]
    response = await describe(client, "paid")
    assert [partition.partition_index for partition in response.topics[0].partitions] == [0, 1]
    assert response.topics[0].topic_id != (await describe(client, "orders")).topics[0].topic_id


@broker_test
async def test_a_long_poll_of_a_view_waits_for_a_selected_record(m: Machine) -> None:
    client, producer = await m.client(), await m.client()
    await client.create_topic("orders")
    await create_view(client)
    waiting = asyncio.ensure_future(client.fetch_partition("paid", 0, max_wait_ms=60_000))
    await producer.produce("orders", tagged((b"1", b"open", None)))
    await asyncio.sleep(1)
    assert not waiting.done()
    await producer.produce("orders", tagged((b"2", b"paid", None)))
    assert values_of(await waiting) == [b"2"]


@broker_test
async def test_a_view_has_what_a_consumer_would_select(m: Machine) -> None:
    """Random batches, codecs and fetch sizes."""
    random = Random(7)
    client = await m.client()
    await client.create_topic("orders", segment_bytes=1 << 20)
    await create_view(client, expression="a || KEYS in (x)")
    expected = []
    for number in range(150):
        records: list[Tagged] = []
        for index in range(random.randrange(1, 12)):
            tag = random.choice([None, b"a", b"b", b"aa"])
            keys = random.choice([None, b"x", b"y x", b"xy"])
            value = b"%d-%d" % (number, index) + random.choice([b"", b"\x08TAGS\x02a"]) + b"x" * random.randrange(2000)
            records.append((value, tag, keys))
            if tag == b"a" or keys in (b"x", b"y x"):
                expected.append(value)
        await client.produce("orders", tagged(*records, codec=random.randrange(5)))
    found: list[bytes] = []
    offset = 0
    while offset < 2_000:
        data = await client.fetch_partition("paid", offset, max_bytes=random.choice([1, 5_000, 100_000]), max_wait_ms=0)
        headers = list(iter_headers(records_of(data)))
        if not headers:
            break
        found += values_of(data, offset)
        assert headers[-1][1].next_offset > offset
        offset = headers[-1][1].next_offset
    assert found == expected


@broker_test
async def test_a_session_fetches_the_partitions_that_are_added_to_the_source(m: Machine) -> None:
    client = await m.client()
    await client.create_topic("orders")
    await create_view(client)
    first = await client.fetch({("paid", 0): 0, ("paid", 1): 0}, session=(0, 0))
    codes = [partition.error_code for partition in first.responses[0].partitions]
    assert codes == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    grow = CreatePartitionsRequest(
        topics=[CreatePartitionsTopic(name="orders", count=2, assignments=None)], timeout_ms=1000
    )
    await client.request(grow, 3, CreatePartitionsResponse)
    await client.produce("orders", tagged((b"1", b"paid", None)), 1)
    second = await client.fetch({}, session=(first.session_id, 1), max_wait_ms=10_000)
    (partition,) = second.responses[0].partitions
    assert (partition.partition_index, values_of(partition)) == (1, [b"1"])


@broker_test
async def test_read_committed_with_aborted_and_open_transactions(m: Machine) -> None:
    client = await m.client()
    await client.create_topic("orders")
    await create_view(client)
    producer = await init_producer(m)

    def transactional(*records: Tagged) -> bytearray:
        data = tagged(*records, codec=3)
        header = parse_header(data)
        body = bytes(data[61:])
        return assemble_batch(
            body, count=header.count, last_offset_delta=header.last_offset_delta, base_timestamp=header.base_timestamp,
            max_timestamp=header.max_timestamp, attributes=header.attributes | TRANSACTIONAL,
            producer_id=producer.producer_id, producer_epoch=producer.epoch, base_sequence=0,
        )  # fmt: skip

    for number, end in enumerate(("abort", "commit", "open")):
        data = transactional((b"%d-paid" % number, b"paid", None), (b"%d-open" % number, b"open", None))
        ((response,),) = await producer.send_all({"orders": {0: data}}, version=12)
        assert response.error_code == 0
        if end != "open":
            assert await (producer.commit() if end == "commit" else producer.abort()) == 0
            await producer.wait_until_completed()
    fetched = await client.fetch_partition("paid", 0, isolation_level=1, max_wait_ms=0)
    # Records 0-1, a marker, records 3-4, a marker, and the open transaction from 6 on.
    assert (fetched.last_stable_offset, fetched.high_watermark) == (6, 8)
    (aborted,) = fetched.aborted_transactions or ()
    assert (aborted.producer_id, aborted.first_offset) == (producer.producer_id, 0)
    assert values_of(fetched) == [b"0-paid", b"1-paid"]
    kinds = [(header.base_offset, header.is_control) for _, header in iter_headers(records_of(fetched))]
    # The client needs the markers: with the abort marker it ends the aborted transaction.
    assert kinds == [(0, False), (2, True), (3, False), (5, True)]
    uncommitted = await client.fetch_partition("paid", 0, max_wait_ms=0)
    assert values_of(uncommitted) == [b"0-paid", b"1-paid", b"2-paid"]
    # An aborted transaction without a selected record before the abort marker still ends.
    assert await producer.abort() == 0
    await producer.wait_until_completed()
    fetched = await client.fetch_partition("paid", 6, isolation_level=1, max_wait_ms=0)
    assert [row.first_offset for row in fetched.aborted_transactions or ()] == [6]


@broker_test
@pytest.mark.parametrize("codec", range(5))
async def test_large_compressed_batches_are_filtered_in_a_thread(m: Machine, codec: int) -> None:
    random = Random(codec)
    client = await m.client()
    await client.create_topic("orders")
    await create_view(client)
    rows: list[Tagged] = [
        (b"%d:" % number + random.randbytes(3000), random.choice([b"paid", b"open"]), None) for number in range(200)
    ]
    assert (await client.produce("orders", tagged(*rows, codec=codec))).error_code == 0
    assert await client.read("paid") == [value for value, tag, _ in rows if tag == b"paid"]
    assert (m.threads.started["read_cold_blocking"] > 0) == (codec > 0)
