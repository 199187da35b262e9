"""Produce: what is stored, what is refused, and how a refusal looks."""

from uuid import UUID

from kafka.protocol.producer import ProduceRequest

from tests.compat.wire import entities
from tests.compat.wire.batches import CONTROL, T0, TRANSACTIONAL, batch, broken, legacy, values
from tests.compat.wire.client import Closed, Connection
from tests.compat.wire.play import Play, now_ms
from tests.compat.wire.stories import transactional

UNKNOWN_ID = UUID(int=1)
NO_PRODUCER = 10**12  # an id that was never given out
FIRST_VERSION = 3


def story(play: Play) -> None:
    if play.version < FIRST_VERSION:
        return not_spoken(play)
    plain_records(play)
    codecs(play)
    refused(play)
    damaged(play)
    kinds_of_topics(play)
    idempotent(play)
    transactional.produce(play)
    without_answers(play)


def to(play: Play, topic: str, records: bytes | None, partition: int = 0) -> dict[str, object]:
    topic_id = play.id(topic) if play.has(topic) else UNKNOWN_ID
    return {"name": topic, "topic_id": topic_id, "partition_data": [{"index": partition, "records": records}]}


def send(play: Play, step: str, topic: str, records: bytes | None, partition: int = 0, **how: object) -> None:
    asked = {"acks": -1, "timeout": 10_000, **how, "topic_data": [to(play, topic, records, partition)]}
    play.ask(step, **asked)


def not_spoken(play: Play) -> None:
    """Advertised, for librdkafka's sake, and not served."""
    topic = play.topic("t")
    stored = [(0, legacy(1))]
    request = ProduceRequest(version=play.version, acks=-1, timeout_ms=1000, topic_data=[(topic, stored)])
    request.with_header(correlation_id=1, client_id="wire")
    play.frame("not served", request.encode(framed=True, header=True), "Produce", FIRST_VERSION)
    play.note("nothing is stored", end_offset=play.end_offset(topic))


def plain_records(play: Play) -> None:
    topic = play.topic("t", 2)
    send(play, "first batch", topic, values("a", "b"))
    send(play, "acks 1", topic, batch((b"k", None)), acks=1)
    send(play, "the other partition", topic, values("c"), 1)
    asked = {"acks": -1, "timeout": 10_000}
    play.ask("no topics", **asked, topic_data=[])
    play.ask("no partitions", **asked, topic_data=[{**to(play, topic, None), "partition_data": []}])
    play.ask("a topic twice", **asked, topic_data=[to(play, topic, values("x")), to(play, topic, values("y"), 1)])
    both = [{"index": 1, "records": values("d")}, {"index": 0, "records": values("e")}]
    play.ask("two partitions", **asked, topic_data=[{**to(play, topic, None), "partition_data": both}])
    twice = [{"index": 0, "records": values("x")}, {"index": 0, "records": values("y")}]
    play.ask("a partition twice", **asked, topic_data=[{**to(play, topic, None), "partition_data": twice}])
    play.note("stored", end_offsets=[play.end_offset(topic), play.end_offset(topic, 1)])


def codecs(play: Play) -> None:
    topic = play.topic("codecs")
    for codec in ("gzip", "snappy", "lz4", "zstd"):
        send(play, f"{codec}", topic, values("a" * 100, "b" * 100, codec=codec))
    send(play, "codec 5", topic, broken(values("a"), attributes=5))
    play.note("stored with codecs", end_offset=play.end_offset(topic))


def refused(play: Play) -> None:
    topic = play.topic("refused")
    send(play, "unknown topic", play.name("unknown"), values("a"))
    send(play, "unknown partition", topic, values("a"), 7)
    send(play, "negative partition", topic, values("a"), -1)
    send(play, "acks 2", topic, values("a"), acks=2)
    send(play, "acks -2", topic, values("a"), acks=-2)
    send(play, "no records", topic, b"")
    send(play, "two batches", topic, values("a") + values("b"))
    send(play, "transactional batch", topic, broken(values("a"), attributes=TRANSACTIONAL))
    send(play, "control batch", topic, broken(values("a"), attributes=CONTROL))
    if play.version >= 13:
        named = {**to(play, topic, values("a")), "topic_id": UUID(int=0)}
        play.ask("zero id", acks=-1, timeout=10_000, topic_data=[named])
    play.group("g")
    play.wait_for("__consumer_offsets", 1)
    send(play, "an internal topic", "__consumer_offsets", values("a"))
    play.note("nothing was stored", end_offset=play.end_offset(topic))


def damaged(play: Play) -> None:
    topic = play.topic("damaged")
    good = values("a", "b")
    send(play, "wrong crc", topic, broken(good, crc=1))
    send(play, "magic 3", topic, broken(good, magic=3))
    send(play, "magic 1 in a batch of 2", topic, broken(good, magic=1))
    send(play, "a message of magic 1", topic, legacy(1))
    send(play, "a message of magic 0", topic, legacy(0))
    send(play, "length too long", topic, broken(good, seal=False, length=len(good)))
    send(play, "length too short", topic, broken(good, seal=False, length=len(good) - 13))
    send(play, "length below the header", topic, broken(good, seal=False, length=10))
    send(play, "negative length", topic, broken(good, seal=False, length=-1))
    send(play, "cut", topic, good[:-1])
    send(play, "cut within the header", topic, good[:30])
    send(play, "trailing byte", topic, good + b"\0")
    send(play, "last offset delta beyond the count", topic, broken(good, last_offset_delta=5))
    send(play, "negative last offset delta", topic, broken(good, last_offset_delta=-1))
    send(play, "no record in the batch", topic, broken(good[:61], length=49, count=0, last_offset_delta=0))
    send(play, "negative count", topic, broken(good, count=-1))
    send(play, "huge count", topic, broken(good, count=2**31 - 1, last_offset_delta=2**31 - 2))
    play.note("nothing damaged was stored", end_offset=play.end_offset(topic))
    send(play, "base offset is not looked at", topic, broken(good, base_offset=77))
    send(play, "leader epoch is not looked at", topic, broken(good, leader_epoch=5))


def kinds_of_topics(play: Play) -> None:
    small = play.topic("small", max_message_bytes="200")
    send(play, "fits", small, values("a" * 100))
    send(play, "too large", small, values("a" * 200))
    stamped = play.topic("stamped", message_timestamp_type="LogAppendTime")
    send(play, "log append time", stamped, values("a", "b"))
    timely = play.topic("timely", message_timestamp_before_max_ms="60000", message_timestamp_after_max_ms="60000")
    send(play, "in time", timely, values("a", time_ms=now_ms()))
    send(play, "too old", timely, values("a", time_ms=T0))
    send(play, "too early", timely, values("a", time_ms=now_ms() + 3_000_000))
    compacted = play.topic("compacted", cleanup_policy="compact")
    send(play, "with a key", compacted, batch((b"k", b"v")))
    send(play, "without a key", compacted, batch((b"k", b"v"), (None, b"v")))
    send(play, "without any key", compacted, batch((None, b"v"), (None, b"v")))
    packed = play.topic("packed", compression_type="zstd")
    send(play, "converted to zstd", packed, values("a" * 100, "b" * 100, codec="gzip"))


def idempotent(play: Play) -> None:
    topic = play.topic("idempotent")
    one = play.producer()

    def give(step: str, sequence: int, epoch: int = 0, producer: int = one) -> None:
        send(play, step, topic, values("a", "b", producer=(producer, epoch, sequence)))

    give("sequence 0", 0)
    give("sequence 0 again", 0)
    give("sequence 2", 2)
    give("a gap", 6)
    for sequence in (4, 6, 8, 10):
        give(f"sequence {sequence}", sequence)
    give("the last again", 10)
    give("older than the last five", 0)
    give("a part of a batch", 9)
    give("a negative sequence", -1)
    give("a new epoch not from 0", 4, 1)
    give("a new epoch", 0, 1)
    give("the old epoch", 12)
    give("a negative epoch", 2, -1)
    give("an unknown producer", 5, 0, NO_PRODUCER)
    play.note("stored once", end_offset=play.end_offset(topic))


def without_answers(play: Play) -> None:
    """acks 0: no answer; a refusal closes the connection."""
    topic = play.topic("unanswered")
    connection = Connection(play.cluster.bootstrap)

    def send_only(to_topic: str) -> None:
        asked = {"acks": 0, "timeout": 10_000, "topic_data": [to(play, to_topic, values("a"))]}
        connection.send(entities.request("Produce", play.version, asked), answered=False)

    send_only(topic)
    send_only(topic)
    connection.ask("ApiVersions", 0)
    play.note("acks 0", end_offset=play.end_offset(topic))
    send_only(play.name("unknown"))
    try:
        connection.receive_raw()
        seen = "answered"
    except Closed:
        seen = "closed"
    play.note("acks 0 to an unknown topic", connection=seen)
    connection.close()
