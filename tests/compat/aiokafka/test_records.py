"""Producing and consuming with aiokafka: record fields, codecs, acknowledgements, sizes, timestamps."""

import asyncio
import time

import pytest
from aiokafka.errors import InvalidTimestampError, MessageSizeTooLargeError

from tests.compat.aiokafka.helpers import in_loop, read

WEEK_MS = 7 * 24 * 3600 * 1000


@pytest.mark.feature("records")
@in_loop
async def test_every_part_of_a_record_comes_back(clients):
    name = await clients.topic()
    now = int(time.time() * 1000)
    headers = [("trace", b"1"), ("trace", b"2"), ("empty", b""), ("ünïcode", b"\x00\xff")]
    written = [
        {"key": b"k", "value": b"v", "headers": headers, "timestamp_ms": now - WEEK_MS},
        {"value": b"no key", "timestamp_ms": now},
        {"key": b"tombstone", "value": None, "timestamp_ms": now + 1},
        {"key": b"", "value": b"", "timestamp_ms": now + 2},
    ]
    sender = await clients.producer()
    results = [await sender.send_and_wait(name, partition=0, **record) for record in written]
    assert [r.offset for r in results] == [0, 1, 2, 3]
    assert results[0].log_start_offset == 0
    for record, original in zip(await read(await clients.consumer(name), 4), written, strict=True):
        assert (record.key, record.value) == (original.get("key"), original["value"])
        assert list(record.headers) == original.get("headers", [])
        assert (record.timestamp, record.timestamp_type) == (original["timestamp_ms"], 0)


@pytest.mark.feature("records")
@in_loop
async def test_many_sends_in_flight_keep_their_order(clients):
    name = await clients.topic(partitions=2)
    sender = await clients.producer(max_batch_size=1000)
    sent = [await sender.send(name, str(n).encode(), partition=n % 2) for n in range(4000)]
    offsets = [result.offset for result in await asyncio.gather(*sent)]
    assert offsets == [n // 2 for n in range(4000)]
    records = await read(await clients.consumer(name), 4000)
    for partition in range(2):
        assert [int(r.value) for r in records if r.partition == partition] == list(range(partition, 4000, 2))


@pytest.mark.feature("records")
@in_loop
async def test_a_batch_built_by_the_caller_is_sent(clients):
    name = await clients.topic()
    sender = await clients.producer()
    batch = sender.create_batch()
    for n in range(10):
        assert batch.append(key=b"k", value=str(n).encode(), timestamp=None)
    batch.close()
    result = await (await sender.send_batch(batch, name, partition=0))
    assert result.offset == 0
    assert [r.offset for r in await read(await clients.consumer(name), 10)] == list(range(10))


@pytest.mark.feature("compression")
@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
@in_loop
async def test_codec(clients, codec):
    name = await clients.topic()
    values = [f"{n} ".encode() * 40 for n in range(2000)]
    sender = await clients.producer(compression_type=codec, linger_ms=20, max_batch_size=200_000)
    await asyncio.gather(*[await sender.send(name, value) for value in values])
    assert [r.value for r in await read(await clients.consumer(name), len(values))] == values


@pytest.mark.feature("compression")
@pytest.mark.parametrize("stored", ["uncompressed", "gzip", "snappy", "lz4", "zstd"])
@in_loop
async def test_broker_recompresses_to_the_topics_codec(clients, stored):
    name = await clients.topic(configs={"compression.type": stored})
    values = [f"{n} ".encode() * 30 for n in range(300)]
    for codec, part in ((None, values[:100]), ("gzip", values[100:200]), ("snappy", values[200:])):
        sender = await clients.producer(compression_type=codec, linger_ms=20)
        await asyncio.gather(*[await sender.send(name, value) for value in part])
    assert [r.value for r in await read(await clients.consumer(name), len(values))] == values


@pytest.mark.feature("acknowledgements")
@pytest.mark.parametrize("acks", [0, 1, "all"])
@in_loop
async def test_acks(clients, acks):
    name = await clients.topic()
    sender = await clients.producer(acks=acks)
    results = [await sender.send_and_wait(name, str(n).encode()) for n in range(5)]
    if acks != 0:
        assert [r.offset for r in results] == [0, 1, 2, 3, 4]
    assert [r.value for r in await read(await clients.consumer(name), 5)] == [b"0", b"1", b"2", b"3", b"4"]


@pytest.mark.feature("idempotence")
@in_loop
async def test_idempotent_producers_share_a_partition(clients):
    name = await clients.topic()
    senders = [await clients.producer(enable_idempotence=True, max_batch_size=500) for _ in range(2)]
    sent = [await senders[n % 2].send(name, f"{n % 2}:{n}".encode()) for n in range(1000)]
    assert sorted(r.offset for r in await asyncio.gather(*sent)) == list(range(1000))
    values = [r.value for r in await read(await clients.consumer(name), 1000)]
    for prefix in (b"0:", b"1:"):
        numbers = [int(v[2:]) for v in values if v.startswith(prefix)]
        assert numbers == sorted(numbers), "the order of one producer's records must stay"
        assert len(numbers) == 500


@pytest.mark.feature("message sizes")
@in_loop
async def test_a_record_just_under_the_limit_is_stored_and_one_over_it_is_refused(clients):
    name = await clients.topic(configs={"max.message.bytes": "100000"})
    sender = await clients.producer(max_request_size=10_000_000)
    assert (await sender.send_and_wait(name, b"a" * 99_900)).offset == 0
    with pytest.raises(MessageSizeTooLargeError):
        await sender.send_and_wait(name, b"b" * 100_001)
    assert (await sender.send_and_wait(name, b"after")).offset == 1
    assert [len(r.value) for r in await read(await clients.consumer(name), 2)] == [99_900, 5]


@pytest.mark.feature("message sizes")
@in_loop
async def test_a_record_larger_than_every_fetch_limit_still_arrives(clients):
    name = await clients.topic(configs={"max.message.bytes": "6000000"})
    large = bytes(range(256)) * 20_000
    sender = await clients.producer(max_request_size=10_000_000)
    await sender.send_and_wait(name, large)
    await sender.send_and_wait(name, b"next")
    reader = await clients.consumer(name, max_partition_fetch_bytes=1000, fetch_max_bytes=2000)
    assert [r.value for r in await read(reader, 2)] == [large, b"next"]


@pytest.mark.feature("fetch limits")
@pytest.mark.parametrize("limits", [{"max_partition_fetch_bytes": 1}, {"fetch_max_bytes": 1}])
@in_loop
async def test_the_smallest_fetches_make_progress(clients, limits):
    name = await clients.topic(partitions=3)
    sender = await clients.producer(max_batch_size=1)
    for n in range(45):
        await sender.send_and_wait(name, str(n).encode(), partition=n % 3)
    records = await read(await clients.consumer(name, **limits), 45)
    for partition in range(3):
        values = [int(r.value) for r in records if r.partition == partition]
        assert values == list(range(partition, 45, 3))


@pytest.mark.feature("timestamps")
@in_loop
async def test_log_append_time_is_the_brokers(clients):
    name = await clients.topic(configs={"message.timestamp.type": "LogAppendTime"})
    before = int(time.time() * 1000)
    result = await (await clients.producer()).send_and_wait(name, b"v", timestamp_ms=before - WEEK_MS)
    after = int(time.time() * 1000)
    [record] = await read(await clients.consumer(name), 1)
    assert record.timestamp_type == 1
    assert before <= record.timestamp <= after
    assert (result.timestamp, result.timestamp_type) == (record.timestamp, 1)


@pytest.mark.feature("timestamps")
@in_loop
async def test_a_timestamp_too_far_ahead_is_refused(clients):
    name = await clients.topic()
    sender = await clients.producer()
    now = int(time.time() * 1000)
    with pytest.raises(InvalidTimestampError):
        await sender.send_and_wait(name, b"v", timestamp_ms=now + 2 * 3600 * 1000)
    assert (await sender.send_and_wait(name, b"fine", timestamp_ms=now)).offset == 0
