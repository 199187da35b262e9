"""Produce: what is stored, what is refused, and how a refusal looks."""

from uuid import UUID

from kafka.protocol.producer import ProduceRequest

from tests.compat.broker_connection import ConnectionClosedError
from tests.compat.wire import kio_messages
from tests.compat.wire.batches import CONTROL, T0, TRANSACTIONAL, batch, legacy, modify, values
from tests.compat.wire.client import Client
from tests.compat.wire.stories import transactional
from tests.compat.wire.story import Story, now_ms, of_api

UNKNOWN_ID = UUID(int=1)
NO_PRODUCER = 10**12  # an id that no producer has
FIRST_VERSION = 3


@of_api("Produce", "records")
def story(story: Story) -> None:
    if story.version < FIRST_VERSION:
        return unserved_versions(story)
    plain_records(story)
    codecs(story)
    rejected(story)
    damaged(story)
    kinds_of_topics(story)
    idempotent(story)
    transactional.produce(story)
    acks_0(story)


def topic_data(story: Story, topic: str, records: bytes | None, partition: int = 0) -> dict[str, object]:
    topic_id = story.topic_id(topic) if story.has_topic(topic) else UNKNOWN_ID
    return {"name": topic, "topic_id": topic_id, "partition_data": [{"index": partition, "records": records}]}


def send(story: Story, step: str, topic: str, records: bytes | None, partition: int = 0, **options: object) -> None:
    fields = {"acks": -1, "timeout": 10_000, **options, "topic_data": [topic_data(story, topic, records, partition)]}
    story.request(step, **fields)


def unserved_versions(story: Story) -> None:
    """These versions are advertised, for librdkafka's sake, but not served."""
    topic = story.create_topic("t")
    stored = [(0, legacy(1))]
    request = ProduceRequest(version=story.version, acks=-1, timeout_ms=1000, topic_data=[(topic, stored)])
    request.with_header(correlation_id=1, client_id="wire")
    story.request_frame("not served", request.encode(framed=True, header=True), "Produce", FIRST_VERSION)
    story.record("nothing is stored", end_offset=story.end_offset(topic))


def plain_records(story: Story) -> None:
    topic = story.create_topic("t", 2)
    send(story, "first batch", topic, values("a", "b"))
    send(story, "acks 1", topic, batch((b"k", None)), acks=1)
    send(story, "the other partition", topic, values("c"), 1)
    fields = {"acks": -1, "timeout": 10_000}
    story.request("no topics", **fields, topic_data=[])
    story.request("no partitions", **fields, topic_data=[{**topic_data(story, topic, None), "partition_data": []}])
    story.request(
        "a topic twice",
        **fields,
        topic_data=[topic_data(story, topic, values("x")), topic_data(story, topic, values("y"), 1)],
    )
    both = [{"index": 1, "records": values("d")}, {"index": 0, "records": values("e")}]
    story.request("two partitions", **fields, topic_data=[{**topic_data(story, topic, None), "partition_data": both}])
    twice = [{"index": 0, "records": values("x")}, {"index": 0, "records": values("y")}]
    story.request(
        "a partition twice", **fields, topic_data=[{**topic_data(story, topic, None), "partition_data": twice}]
    )
    story.record("stored", end_offsets=[story.end_offset(topic), story.end_offset(topic, 1)])


def codecs(story: Story) -> None:
    topic = story.create_topic("codecs")
    for codec in ("gzip", "snappy", "lz4", "zstd"):
        send(story, f"{codec}", topic, values("a" * 100, "b" * 100, codec=codec))
    send(story, "codec 5", topic, modify(values("a"), attributes=5))
    story.record("stored with codecs", end_offset=story.end_offset(topic))


def rejected(story: Story) -> None:
    topic = story.create_topic("refused")
    send(story, "unknown topic", story.name("unknown"), values("a"))
    send(story, "unknown partition", topic, values("a"), 7)
    send(story, "negative partition", topic, values("a"), -1)
    send(story, "acks 2", topic, values("a"), acks=2)
    send(story, "acks -2", topic, values("a"), acks=-2)
    send(story, "no records", topic, b"")
    send(story, "two batches", topic, values("a") + values("b"))
    send(story, "transactional batch", topic, modify(values("a"), attributes=TRANSACTIONAL))
    send(story, "control batch", topic, modify(values("a"), attributes=CONTROL))
    if story.version >= 13:
        fields_by_id = {**topic_data(story, topic, values("a")), "topic_id": UUID(int=0)}
        story.request("zero id", acks=-1, timeout=10_000, topic_data=[fields_by_id])
    story.group("g")
    story.wait_for_topic("__consumer_offsets", 1)
    send(story, "an internal topic", "__consumer_offsets", values("a"))
    story.record("nothing was stored", end_offset=story.end_offset(topic))


def damaged(story: Story) -> None:
    topic = story.create_topic("damaged")
    valid = values("a", "b")
    send(story, "wrong crc", topic, modify(valid, crc=1))
    send(story, "magic 3", topic, modify(valid, magic=3))
    send(story, "magic 1 in a batch of 2", topic, modify(valid, magic=1))
    send(story, "a message of magic 1", topic, legacy(1))
    send(story, "a message of magic 0", topic, legacy(0))
    send(story, "length too long", topic, modify(valid, update_crc=False, length=len(valid)))
    send(story, "length too short", topic, modify(valid, update_crc=False, length=len(valid) - 13))
    send(story, "length below the header", topic, modify(valid, update_crc=False, length=10))
    send(story, "negative length", topic, modify(valid, update_crc=False, length=-1))
    send(story, "cut", topic, valid[:-1])
    send(story, "cut within the header", topic, valid[:30])
    send(story, "trailing byte", topic, valid + b"\0")
    send(story, "last offset delta beyond the count", topic, modify(valid, last_offset_delta=5))
    send(story, "negative last offset delta", topic, modify(valid, last_offset_delta=-1))
    send(story, "no record in the batch", topic, modify(valid[:61], length=49, count=0, last_offset_delta=0))
    send(story, "negative count", topic, modify(valid, count=-1))
    send(story, "huge count", topic, modify(valid, count=2**31 - 1, last_offset_delta=2**31 - 2))
    story.record("nothing damaged was stored", end_offset=story.end_offset(topic))
    send(story, "base offset is not looked at", topic, modify(valid, base_offset=77))
    send(story, "leader epoch is not looked at", topic, modify(valid, leader_epoch=5))


def kinds_of_topics(story: Story) -> None:
    small = story.create_topic("small", max_message_bytes="200")
    send(story, "fits", small, values("a" * 100))
    send(story, "too large", small, values("a" * 200))
    stamped = story.create_topic("stamped", message_timestamp_type="LogAppendTime")
    send(story, "log append time", stamped, values("a", "b"))
    timely = story.create_topic(
        "timely", message_timestamp_before_max_ms="60000", message_timestamp_after_max_ms="60000"
    )
    send(story, "in time", timely, values("a", time_ms=now_ms()))
    send(story, "too old", timely, values("a", time_ms=T0))
    send(story, "too early", timely, values("a", time_ms=now_ms() + 3_000_000))
    compacted = story.create_topic("compacted", cleanup_policy="compact")
    send(story, "with a key", compacted, batch((b"k", b"v")))
    send(story, "without a key", compacted, batch((b"k", b"v"), (None, b"v")))
    send(story, "without any key", compacted, batch((None, b"v"), (None, b"v")))
    packed = story.create_topic("packed", compression_type="zstd")
    send(story, "converted to zstd", packed, values("a" * 100, "b" * 100, codec="gzip"))


def idempotent(story: Story) -> None:
    topic = story.create_topic("idempotent")
    producer_id = story.producer_id()

    def produce(step: str, sequence: int, epoch: int = 0, producer: int = producer_id) -> None:
        send(story, step, topic, values("a", "b", producer=(producer, epoch, sequence)))

    produce("sequence 0", 0)
    produce("sequence 0 again", 0)
    produce("sequence 2", 2)
    produce("a gap", 6)
    for sequence in (4, 6, 8, 10):
        produce(f"sequence {sequence}", sequence)
    produce("the last again", 10)
    produce("older than the last five", 0)
    produce("a part of a batch", 9)
    produce("a negative sequence", -1)
    produce("a new epoch not from 0", 4, 1)
    produce("a new epoch", 0, 1)
    produce("the old epoch", 12)
    produce("a negative epoch", 2, -1)
    produce("an unknown producer", 5, 0, NO_PRODUCER)
    story.record("stored once", end_offset=story.end_offset(topic))


def acks_0(story: Story) -> None:
    """Produce with acks=0 has no response; an error closes the connection."""
    topic = story.create_topic("no-response")
    client = Client(story.cluster.bootstrap)

    def send_acks_0(to_topic: str) -> None:
        fields = {"acks": 0, "timeout": 10_000, "topic_data": [topic_data(story, to_topic, values("a"))]}
        client.send(kio_messages.request("Produce", story.version, fields), expect_response=False)

    send_acks_0(topic)
    send_acks_0(topic)
    client.request("ApiVersions", 0)
    story.record("acks 0", end_offset=story.end_offset(topic))
    send_acks_0(story.name("unknown"))
    try:
        client.receive_raw()
        outcome = "answered"
    except ConnectionClosedError:
        outcome = "closed"
    story.record("acks 0 to an unknown topic", connection=outcome)
    client.close()
