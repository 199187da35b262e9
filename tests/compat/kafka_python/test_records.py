"""Producing and consuming with kafka-python: record fields, codecs, acknowledgements, sizes, timestamps."""

import time

import pytest
from kafka import TopicPartition
from kafka.errors import InvalidRecordError, InvalidTimestampError, MessageSizeTooLargeError

from tests.compat.kafka_python.helpers import read
from tests.compat.support import DEADLINE_S, eventually, need_own_broker

WEEK_MS = 7 * 24 * 3600 * 1000


@pytest.mark.feature("records")
def test_every_part_of_a_record_comes_back(producer, consumer, topic):
    name = topic()
    now = int(time.time() * 1000)
    headers = [("trace", b"1"), ("trace", b"2"), ("empty", b""), ("ünïcode", b"\x00\xff")]
    written = [
        {"key": b"k", "value": b"v", "headers": headers, "timestamp_ms": now - WEEK_MS},
        {"key": None, "value": b"no key", "headers": [], "timestamp_ms": now},
        {"key": b"tombstone", "value": None, "headers": [], "timestamp_ms": now + 1},
        {"key": b"", "value": b"", "headers": [], "timestamp_ms": now + 2},
    ]
    sender = producer()
    results = [sender.send(name, partition=0, **record).get(DEADLINE_S) for record in written]
    assert [r.offset for r in results] == [0, 1, 2, 3]
    assert [r.timestamp for r in results] == [record["timestamp_ms"] for record in written]

    records = read(consumer(name), len(written))
    assert [r.offset for r in records] == [0, 1, 2, 3]
    for record, original in zip(records, written, strict=True):
        assert (record.key, record.value) == (original["key"], original["value"])
        assert list(record.headers) == original["headers"]
        assert (record.timestamp, record.timestamp_type) == (original["timestamp_ms"], 0)


@pytest.mark.feature("records")
def test_a_key_always_goes_to_the_same_partition_and_keeps_its_order(producer, consumer, topic):
    name = topic(partitions=3)
    sender = producer(linger_ms=5)
    keys = [f"key-{n % 20}".encode() for n in range(400)]
    for number, key in enumerate(keys):
        sender.send(name, key=key, value=str(number).encode())
    sender.flush(DEADLINE_S)
    records = read(consumer(name), len(keys))
    places: dict[bytes, set[int]] = {}
    order: dict[bytes, list[int]] = {}
    for record in records:
        places.setdefault(record.key, set()).add(record.partition)
        order.setdefault(record.key, []).append(int(record.value))
    assert all(len(where) == 1 for where in places.values())
    assert len({min(where) for where in places.values()}) == 3, "20 keys should spread over three partitions"
    assert all(numbers == sorted(numbers) for numbers in order.values())


@pytest.mark.feature("compression")
@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_codec(producer, consumer, topic, codec):
    name = topic()
    values = [f"{n} ".encode() * 40 for n in range(2000)]
    sender = producer(compression_type=codec, linger_ms=20, batch_size=200_000)
    for value in values:
        sender.send(name, value)
    sender.flush(DEADLINE_S)
    assert [r.value for r in read(consumer(name), len(values))] == values


@pytest.mark.feature("acknowledgements")
@pytest.mark.parametrize("acks", [0, 1, "all"])
def test_acks(producer, consumer, topic, acks):
    name = topic()
    sender = producer(acks=acks, enable_idempotence=False)
    results = [sender.send(name, str(n).encode()).get(DEADLINE_S) for n in range(5)]
    if acks != 0:
        assert [r.offset for r in results] == [0, 1, 2, 3, 4]
    assert [r.value for r in read(consumer(name), 5)] == [b"0", b"1", b"2", b"3", b"4"]


@pytest.mark.feature("idempotence")
def test_idempotent_producers_share_a_partition(producer, consumer, topic, admin):
    name = topic()
    senders = [producer(enable_idempotence=True, linger_ms=1, batch_size=500) for _ in range(2)]
    results = [senders[n % 2].send(name, f"{n % 2}:{n}".encode()) for n in range(1000)]
    for sender in senders:
        sender.flush(DEADLINE_S)
    assert sorted(r.get(1).offset for r in results) == list(range(1000))
    values = [r.value for r in read(consumer(name), 1000)]
    for prefix in (b"0:", b"1:"):
        numbers = [int(v[2:]) for v in values if v.startswith(prefix)]
        assert numbers == sorted(numbers), "the order of one producer's records must stay"
        assert len(numbers) == 500

    state = admin.describe_producers([TopicPartition(name, 0)])[TopicPartition(name, 0)]
    assert len({p.producer_id for p in state.active_producers}) == 2
    assert all(p.producer_epoch == 0 for p in state.active_producers)


@pytest.mark.feature("message sizes")
def test_a_record_just_under_the_limit_is_stored_and_one_over_it_is_refused(producer, consumer, topic):
    name = topic(configs={"max.message.bytes": "100000"})
    # To an idempotent producer of kafka-python every rejected batch is a fatal error.
    sender = producer(max_request_size=10_000_000, batch_size=0, enable_idempotence=False)
    assert sender.send(name, b"a" * 99_900).get(DEADLINE_S).offset == 0
    with pytest.raises(MessageSizeTooLargeError):
        sender.send(name, b"b" * 100_001).get(DEADLINE_S)
    assert sender.send(name, b"after").get(DEADLINE_S).offset == 1
    assert [len(r.value) for r in read(consumer(name), 2)] == [99_900, 5]


@pytest.mark.feature("message sizes")
def test_a_record_larger_than_every_fetch_limit_still_arrives(producer, consumer, topic):
    name = topic(configs={"max.message.bytes": "6000000"})
    large = bytes(range(256)) * 20_000
    sender = producer(max_request_size=10_000_000)
    sender.send(name, large).get(DEADLINE_S)
    sender.send(name, b"next").get(DEADLINE_S)
    reader = consumer(name, max_partition_fetch_bytes=1000, fetch_max_bytes=2000)
    assert [r.value for r in read(reader, 2)] == [large, b"next"]


@pytest.mark.feature("fetch limits")
@pytest.mark.parametrize("limits", [{"max_partition_fetch_bytes": 1}, {"fetch_max_bytes": 1}])
def test_the_smallest_fetches_make_progress(producer, consumer, topic, limits):
    name = topic(partitions=3)
    sender = producer(batch_size=0)
    for n in range(60):
        sender.send(name, str(n).encode(), partition=n % 3)
    sender.flush(DEADLINE_S)
    records = read(consumer(name, **limits), 60)
    for partition in range(3):
        in_partition = [int(r.value) for r in records if r.partition == partition]
        assert in_partition == list(range(partition, 60, 3))


@pytest.mark.feature("timestamps")
def test_log_append_time_is_the_brokers(producer, consumer, topic):
    name = topic(configs={"message.timestamp.type": "LogAppendTime"})
    before = int(time.time() * 1000)
    result = producer().send(name, b"v", timestamp_ms=before - WEEK_MS).get(DEADLINE_S)
    after = int(time.time() * 1000)
    [record] = read(consumer(name), 1)
    assert record.timestamp_type == 1
    assert before <= record.timestamp <= after
    assert result.timestamp == record.timestamp


@pytest.mark.feature("timestamps")
def test_a_timestamp_too_far_ahead_is_refused(producer, consumer, topic):
    name = topic()
    sender = producer(enable_idempotence=False)
    now = int(time.time() * 1000)
    with pytest.raises(InvalidTimestampError):
        sender.send(name, b"from the future", timestamp_ms=now + 2 * 3600 * 1000).get(DEADLINE_S)
    assert sender.send(name, b"fine", timestamp_ms=now).get(DEADLINE_S).offset == 0


@pytest.mark.feature("idempotency keys")
@pytest.mark.parametrize("idempotent", [False, True])
def test_a_record_with_a_known_idempotency_key_is_not_stored_again(producer, consumer, topic, idempotent):
    name = topic(configs={"kbroker.dedup.window.ms": "600000"})
    sender = producer(enable_idempotence=idempotent)

    def send(key: bytes, value: bytes) -> int:
        future = sender.send(name, value=value, headers=[("IDEMPOTENCY_KEY", key)])
        return future.get(DEADLINE_S).offset

    assert send(b"a", b"1") == 0
    assert send(b"a", b"2") == 0
    last = send(b"b", b"3")
    assert send(b"b", b"4") == last
    assert [record.value for record in read(consumer(name), 2)] == [b"1", b"3"]


@pytest.mark.feature("records")
def test_views_and_expiry_in_every_codec(producer, consumer, topic):
    """The broker sends batches that it has compressed again; positions move over what it leaves out."""
    need_own_broker()
    source = topic(configs={"kbroker.ttl.enable": "true"})
    view = topic(partitions=-1, configs={"kbroker.view.of": source, "kbroker.view.filter": "paid"})
    now = int(time.time() * 1000)
    codecs = [None, "gzip", "snappy", "lz4", "zstd"]
    for codec in codecs:
        # The records of each codec are one batch.
        sender = producer(compression_type=codec, linger_ms=5_000)
        for name, tag, age_ms in (("a", b"paid", 0), ("b", b"paid", 60_000), ("c", b"open", 0), ("d", b"open", 60_000)):
            headers = [("TAGS", tag), ("TTL_MS", b"50000")]
            sender.send(source, f"{codec}-{name}".encode(), headers=headers, timestamp_ms=now - age_ms)
        sender.flush(DEADLINE_S)
    reading = consumer(source)
    assert [record.value.decode() for record in read(reading, 10)] == [f"{c}-{n}" for c in codecs for n in "ac"]
    reading = consumer(view)
    assert [record.value.decode() for record in read(reading, 5)] == [f"{codec}-a" for codec in codecs]

    def is_at_the_end() -> bool:
        assert not reading.poll(1_000)
        return reading.position(TopicPartition(view, 0)) == 20

    eventually(is_at_the_end, "the position behind the records that are left out", interval=0)
    with pytest.raises(InvalidRecordError, match="TTL_MS is 'soon'"):
        producer().send(source, b"v", headers=[("TTL_MS", b"soon")]).get(DEADLINE_S)
