"""Apache Kafka's own Java clients, which most applications and Spark use."""

import time

import pytest
from py4j.protocol import Py4JJavaError

from tests.compat.support import eventually, unique

SERIALIZER = "org.apache.kafka.common.serialization.ByteArraySerializer"
DESERIALIZER = "org.apache.kafka.common.serialization.ByteArrayDeserializer"


class JavaClients:
    """Java producers and consumers of the broker under test, closed at the end."""

    def __init__(self, jvm, bootstrap):
        self.jvm = jvm
        self.clients = jvm.java.org.apache.kafka.clients
        self.common = jvm.java.org.apache.kafka.common
        self.bootstrap = bootstrap
        self.open = []

    def producer(self, **settings):
        defaults = {"key.serializer": SERIALIZER, "value.serializer": SERIALIZER}
        return self._opened(self.clients.producer.KafkaProducer, defaults, settings)

    def consumer(self, **settings):
        defaults = {
            "key.deserializer": DESERIALIZER,
            "value.deserializer": DESERIALIZER,
            "auto.offset.reset": "earliest",
            "heartbeat.interval.ms": 200,
            "fetch.max.wait.ms": 100,
        }
        return self._opened(self.clients.consumer.KafkaConsumer, defaults, settings)

    def record(self, topic, value, key=None, partition=None, timestamp=None, headers=()):
        listed = self.jvm.java.java.util.ArrayList()
        for name, content in headers:
            listed.add(self.common.header.internals.RecordHeader(name, content))
        return self.clients.producer.ProducerRecord(topic, partition, timestamp, key, value, listed)

    def partition(self, topic, index):
        return self.common.TopicPartition(topic, index)

    def listed(self, *items):
        values = self.jvm.java.java.util.ArrayList()
        for item in items:
            values.add(item)
        return values

    def poll(self, consumer, ms=100):
        iterator = consumer.poll(self.jvm.java.java.time.Duration.ofMillis(ms)).iterator()
        records = []
        while iterator.hasNext():
            records.append(iterator.next())
        return records

    def read(self, consumer, count):
        records = []
        eventually(lambda: records.extend(self.poll(consumer)) or len(records) >= count, f"{count} records")
        assert len(records) == count, f"{len(records)} records where {count} were written"
        return records

    def shared(self, consumers, topic, count):
        """Poll every consumer; return whether each has partitions and each partition has one member."""
        for consumer in consumers:
            self.poll(consumer, 50)
        shares = [{tp.partition() for tp in consumer.assignment()} for consumer in consumers]
        return all(shares) and sum(map(len, shares)) == count and set().union(*shares) == set(range(count))

    def close(self):
        for client in self.open:
            client.close()

    def _opened(self, cls, defaults, settings):
        named = {name.replace("_", "."): value for name, value in settings.items()}
        merged = {"bootstrap.servers": self.bootstrap, **defaults, **named}
        # None unsets a default.
        chosen = {name: value for name, value in merged.items() if value is not None}
        self.open.append(cls(self.jvm.settings(chosen)))
        return self.open[-1]


@pytest.fixture
def java(jvm, bootstrap, topic):
    clients = JavaClients(jvm, bootstrap)
    yield clients
    clients.close()


@pytest.mark.feature("records")
def test_every_part_of_a_record_comes_back(java, topic):
    name = topic()
    now = int(time.time() * 1000)
    headers = [("trace", b"1"), ("trace", b"2"), ("null", None)]
    sender = java.producer()
    for value, key, when in ((b"v", b"k", now), (None, b"tombstone", now + 1), (b"", None, now + 2)):
        sender.send(java.record(name, value, key, 0, when, headers)).get()
    reader = java.consumer(group_id=unique("java"))
    reader.subscribe(java.listed(name))
    records = java.read(reader, 3)
    assert [(r.offset(), r.key(), r.value(), r.timestamp()) for r in records] == [
        (0, b"k", b"v", now),
        (1, b"tombstone", None, now + 1),
        (2, None, b"", now + 2),
    ]
    for record in records:
        assert [(h.key(), h.value()) for h in record.headers().toArray()] == headers


@pytest.mark.feature("compression")
@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_codec(java, topic, codec):
    name = topic()
    values = [f"{n} ".encode() * 200 for n in range(150)]
    sender = java.producer(compression_type=codec, linger_ms=50, batch_size=200_000)
    for value in values:
        sender.send(java.record(name, value))
    sender.flush()
    reader = java.consumer()
    reader.assign(java.listed(java.partition(name, 0)))
    assert [r.value() for r in java.read(reader, len(values))] == values


@pytest.mark.feature("compression")
@pytest.mark.parametrize("stored", ["uncompressed", "gzip", "snappy", "lz4", "zstd"])
def test_java_reads_what_the_broker_recompressed(java, topic, stored):
    name = topic(configs={"compression.type": stored})
    values = [f"{n} ".encode() * 200 for n in range(60)]
    for codec, part in (("none", values[:20]), ("lz4", values[20:40]), ("zstd", values[40:])):
        sender = java.producer(compression_type=codec, linger_ms=50)
        for value in part:
            sender.send(java.record(name, value))
        sender.flush()
    reader = java.consumer()
    reader.assign(java.listed(java.partition(name, 0)))
    assert [r.value() for r in java.read(reader, len(values))] == values


@pytest.mark.feature("acknowledgements")
@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_acks(java, topic, acks):
    name = topic()
    sender = java.producer(acks=acks, enable_idempotence=str(acks == "all").lower())
    offsets = [sender.send(java.record(name, b"v")).get().offset() for _ in range(3)]
    assert offsets == ([-1, -1, -1] if acks == "0" else [0, 1, 2])


@pytest.mark.feature("message sizes")
def test_a_batch_over_the_limit_is_split_and_every_record_arrives(java, topic):
    name = topic(configs={"max.message.bytes": "5000"})
    # One batch, which is sent by the flush: on a slow machine there would be several, whose parts overtake each other.
    sender = java.producer(linger_ms=60_000, batch_size=100_000)
    for n in range(100):
        sender.send(java.record(name, str(n).encode() * 100))
    sender.flush()
    reader = java.consumer()
    reader.assign(java.listed(java.partition(name, 0)))
    assert [int(r.value()[: len(r.value()) // 100]) for r in java.read(reader, 100)] == list(range(100))


@pytest.mark.feature("message sizes")
def test_a_record_over_the_limit_is_refused(java, topic):
    sender = java.producer()
    with pytest.raises(Py4JJavaError, match="RecordTooLargeException"):
        sender.send(java.record(topic(configs={"max.message.bytes": "5000"}), b"x" * 6000)).get()


@pytest.mark.feature("offsets")
def test_offsets_by_time_and_the_ends(java, topic):
    name = topic()
    tp = java.partition(name, 0)
    sender = java.producer()
    for n in range(5):
        sender.send(java.record(name, b"v", None, 0, 1_700_000_000_000 + n * 1000)).get()
    reader = java.consumer()
    reader.assign(java.listed(tp))
    times = java.jvm.java.java.util.HashMap()
    times.put(tp, 1_700_000_002_500)
    offset_and_time = reader.offsetsForTimes(times).get(tp)
    assert (offset_and_time.offset(), offset_and_time.timestamp()) == (3, 1_700_000_003_000)
    assert reader.beginningOffsets(java.listed(tp)).get(tp) == 0
    assert reader.endOffsets(java.listed(tp)).get(tp) == 5


@pytest.mark.feature("commits")
def test_commits_with_metadata(java, topic, group):
    name = topic()
    tp = java.partition(name, 0)
    reader = java.consumer(group_id=group)
    offsets = java.jvm.java.java.util.HashMap()
    offsets.put(tp, java.clients.consumer.OffsetAndMetadata(42, "so far"))
    reader.commitSync(offsets)
    stored = reader.committed(java.jvm.java.java.util.HashSet(java.listed(tp))).get(tp)
    assert (stored.offset(), stored.metadata()) == (42, "so far")


@pytest.mark.feature("consumer groups")
def test_members_join_and_leave_and_share_the_partitions(java, topic, group):
    name = topic(partitions=4)
    first, second = (java.consumer(group_id=group) for _ in range(2))
    first.subscribe(java.listed(name))
    eventually(lambda: java.shared([first], name, 4), "everything for the first member")
    second.subscribe(java.listed(name))
    eventually(lambda: java.shared([first, second], name, 4), "two partitions for each")
    first.unsubscribe()
    eventually(lambda: java.shared([second], name, 4), "everything for the member that stayed")


@pytest.mark.feature("static membership")
def test_a_static_member_comes_back_without_a_rebalance(java, topic, group):
    name = topic(partitions=4)
    stays = java.consumer(group_id=group, group_instance_id="stays")
    leaves = java.consumer(group_id=group, group_instance_id="leaves")
    for consumer in (stays, leaves):
        consumer.subscribe(java.listed(name))
    eventually(lambda: java.shared([stays, leaves], name, 4), "two partitions for each")
    generation, share = stays.groupMetadata().generationId(), set(leaves.assignment())
    leaves.close()
    returned = java.consumer(group_id=group, group_instance_id="leaves")
    returned.subscribe(java.listed(name))
    eventually(lambda: java.shared([stays, returned], name, 4), "the member that came back")
    assert {str(tp) for tp in returned.assignment()} == {str(tp) for tp in share}
    assert stays.groupMetadata().generationId() == generation


@pytest.mark.feature("cooperative rebalance")
def test_a_cooperative_member_keeps_what_does_not_move(java, topic, group):
    name = topic(partitions=4)
    sticky = "org.apache.kafka.clients.consumer.CooperativeStickyAssignor"
    first, second = (java.consumer(group_id=group, partition_assignment_strategy=sticky) for _ in range(2))
    first.subscribe(java.listed(name))
    eventually(lambda: java.shared([first], name, 4), "everything for the first member")
    second.subscribe(java.listed(name))
    owned = []

    def is_balanced() -> bool:
        owned.append(len(first.assignment()))
        return java.shared([first, second], name, 4)

    eventually(is_balanced, "two partitions for each")
    assert set(owned) <= {4, 2}, "the first member never owned fewer than it keeps"
