"""Producing and consuming with confluent-kafka: record fields, codecs, acknowledgements, sizes, timestamps."""

import time

import pytest
from confluent_kafka import TIMESTAMP_CREATE_TIME, TIMESTAMP_LOG_APPEND_TIME, KafkaError, KafkaException

from tests.compat.confluent_kafka.helpers import code_of, from_the_start, read, send, send_all
from tests.compat.support import DEADLINE_S

WEEK_MS = 7 * 24 * 3600 * 1000
ORDERED = {"enable.idempotence": True}  # without it a repeated request may overtake the next


@pytest.mark.feature("records")
def test_every_part_of_a_record_comes_back(producer, consumer, topic):
    name = topic()
    now = int(time.time() * 1000)
    headers = [("trace", b"1"), ("trace", b"2"), ("empty", b""), ("null", None), ("ünïcode", b"\x00\xff")]
    written = [
        (b"v", {"key": b"k", "headers": headers, "timestamp": now - WEEK_MS}),
        (b"no key", {"timestamp": now}),
        (None, {"key": b"tombstone", "timestamp": now + 1}),
        (b"", {"key": b"", "timestamp": now + 2}),
    ]
    sender = producer()
    delivered = [send(sender, name, value, partition=0, **record) for value, record in written]
    assert [m.offset() for m in delivered] == [0, 1, 2, 3]

    messages = read(from_the_start(consumer(), name), len(written))
    assert [m.offset() for m in messages] == [0, 1, 2, 3]
    for message, (value, record) in zip(messages, written, strict=True):
        assert (message.key(), message.value()) == (record.get("key"), value)
        assert message.headers() == record.get("headers")
        assert message.timestamp() == (TIMESTAMP_CREATE_TIME, record["timestamp"])
        assert message.leader_epoch() == 0


@pytest.mark.feature("records")
def test_many_records_in_many_requests_keep_their_order(producer, consumer, topic):
    name = topic(partitions=3)
    sender = producer({**ORDERED, "batch.num.messages": 50, "linger.ms": 2})
    for partition in range(3):
        send_all(sender, name, (str(n).encode() for n in range(5000)), partition=partition)
    messages = read(from_the_start(consumer(), name, 3), 15_000)
    for partition in range(3):
        in_partition = [(m.offset(), int(m.value())) for m in messages if m.partition() == partition]
        assert in_partition == [(n, n) for n in range(5000)]


@pytest.mark.feature("compression")
@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_codec(producer, consumer, topic, codec):
    name = topic()
    values = [f"{n} ".encode() * 40 for n in range(2000)]
    send_all(producer({**ORDERED, "compression.type": codec, "linger.ms": 20}), name, values)
    assert [m.value() for m in read(from_the_start(consumer(), name), len(values))] == values


@pytest.mark.feature("compression")
@pytest.mark.parametrize("stored", ["uncompressed", "gzip", "snappy", "lz4", "zstd"])
def test_broker_recompresses_to_the_topics_codec(producer, consumer, topic, stored):
    name = topic(configs={"compression.type": stored})
    values = [f"{n} ".encode() * 30 for n in range(300)]
    for codec, part in (("none", values[:100]), ("snappy", values[100:200]), ("zstd", values[200:])):
        send_all(producer({"compression.type": codec, "linger.ms": 20}), name, part)
    assert [m.value() for m in read(from_the_start(consumer(), name), len(values))] == values


@pytest.mark.feature("acknowledgements")
@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_acks(producer, consumer, topic, acks):
    name = topic()
    sender = producer({"acks": acks})
    delivered = [send(sender, name, str(n).encode()) for n in range(5)]
    if acks != "0":
        assert [m.offset() for m in delivered] == [0, 1, 2, 3, 4]
    messages = read(from_the_start(consumer(), name), 5)
    assert [m.value() for m in messages] == [b"0", b"1", b"2", b"3", b"4"]


@pytest.mark.feature("idempotence")
def test_idempotent_producers_share_a_partition(producer, consumer, topic):
    name = topic()
    senders = [producer({**ORDERED, "batch.num.messages": 20}) for _ in range(2)]
    for n in range(2000):
        senders[n % 2].produce(name, f"{n % 2}:{n}".encode(), partition=0)
    assert [sender.flush(DEADLINE_S) for sender in senders] == [0, 0]
    values = [m.value() for m in read(from_the_start(consumer(), name), 2000)]
    for prefix in (b"0:", b"1:"):
        numbers = [int(v[2:]) for v in values if v.startswith(prefix)]
        assert numbers == sorted(numbers), "the order of one producer's records must stay"
        assert len(numbers) == 1000


@pytest.mark.feature("message sizes")
def test_a_record_just_under_the_limit_is_stored_and_one_over_it_is_refused(producer, consumer, topic):
    name = topic(configs={"max.message.bytes": "100000"})
    sender = producer({"message.max.bytes": 10_000_000})
    assert send(sender, name, b"a" * 99_900).offset() == 0
    with pytest.raises(KafkaException) as raised:
        send(sender, name, b"b" * 100_001)
    assert code_of(raised.value) == KafkaError.MSG_SIZE_TOO_LARGE
    assert send(sender, name, b"after").offset() == 1
    assert [len(m.value()) for m in read(from_the_start(consumer(), name), 2)] == [99_900, 5]


@pytest.mark.feature("message sizes")
def test_a_record_larger_than_every_fetch_limit_still_arrives(producer, consumer, topic):
    name = topic(configs={"max.message.bytes": "6000000"})
    large = bytes(range(256)) * 20_000
    sender = producer({"message.max.bytes": 10_000_000})
    send(sender, name, large)
    send(sender, name, b"next")
    limits = {"fetch.message.max.bytes": 1000, "fetch.max.bytes": 2000, "message.max.bytes": 2000}
    assert [m.value() for m in read(from_the_start(consumer(limits), name), 2)] == [large, b"next"]


@pytest.mark.feature("fetch limits")
def test_the_smallest_fetches_make_progress(producer, consumer, topic):
    name = topic(partitions=3)
    sender = producer({**ORDERED, "batch.num.messages": 1, "linger.ms": 0})
    for n in range(60):
        sender.produce(name, str(n).encode(), partition=n % 3)
    assert sender.flush(DEADLINE_S) == 0
    messages = read(from_the_start(consumer({"fetch.message.max.bytes": 1}), name, 3), 60)
    for partition in range(3):
        in_partition = [int(m.value()) for m in messages if m.partition() == partition]
        assert in_partition == list(range(partition, 60, 3))


@pytest.mark.feature("fetch limits")
def test_a_fetch_completes_when_min_bytes_have_arrived(producer, consumer, topic):
    name = topic()
    # Longer than the test waits, so that the records come before this time has passed.
    wait_ms = 2 * int(DEADLINE_S * 1000)
    settings = {"fetch.min.bytes": 5000, "fetch.wait.max.ms": wait_ms, "socket.timeout.ms": wait_ms + 10_000}
    reader = from_the_start(consumer(settings), name)
    assert reader.poll(0.5) is None
    sender = producer()
    send(sender, name, b"x")
    assert reader.poll(0.7) is None, "one small record must not complete a fetch that wants 5000 bytes"
    send(sender, name, b"y" * 6000)
    assert [len(m.value()) for m in read(reader, 2)] == [1, 6000]


@pytest.mark.feature("timestamps")
def test_log_append_time_is_the_brokers(producer, consumer, topic):
    name = topic(configs={"message.timestamp.type": "LogAppendTime"})
    before = int(time.time() * 1000)
    delivered = send(producer(), name, b"v", timestamp=before - WEEK_MS)
    after = int(time.time() * 1000)
    [message] = read(from_the_start(consumer(), name), 1)
    kind, timestamp = message.timestamp()
    assert kind == TIMESTAMP_LOG_APPEND_TIME
    assert before <= timestamp <= after
    assert delivered.timestamp() == (TIMESTAMP_LOG_APPEND_TIME, timestamp)


@pytest.mark.feature("timestamps")
def test_a_timestamp_out_of_bounds_is_refused(producer, topic):
    name = topic(configs={"message.timestamp.before.max.ms": "60000"})
    sender = producer()
    now = int(time.time() * 1000)
    for wrong in (now - 120_000, now + 2 * 3600 * 1000):
        with pytest.raises(KafkaException) as raised:
            send(sender, name, b"v", timestamp=wrong)
        assert code_of(raised.value) == KafkaError.INVALID_TIMESTAMP
    assert send(sender, name, b"v", timestamp=now).offset() == 0


@pytest.mark.feature("idempotency keys")
@pytest.mark.parametrize("settings", [{}, ORDERED], ids=["plain", "idempotent"])
def test_a_record_with_a_known_idempotency_key_is_not_stored_again(producer, consumer, topic, settings):
    name = topic(configs={"kbroker.dedup.window.ms": "600000"})
    sender = producer(settings)
    keys = [b"a", b"b", b"a", b"c", b"b", b"d"]
    for round_number in range(2):
        send_all(sender, name, [b"%d" % round_number] * len(keys), headers=[("IDEMPOTENCY_KEY", b"all")])
    offsets = [send(sender, name, key, headers=[("IDEMPOTENCY_KEY", key)]).offset() for key in keys]
    assert (offsets[2], offsets[4]) == (offsets[0], offsets[1])
    messages = read(from_the_start(consumer(), name), 5)
    assert [message.value() for message in messages] == [b"0", b"a", b"b", b"c", b"d"]
