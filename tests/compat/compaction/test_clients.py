"""Compacted topics, written by Kafka's own producers and others, read by the Java consumer.

No test reads the broker's files, so they can run against any broker.
"""

import random

import pytest
from confluent_kafka import KafkaException, Producer
from kafka import KafkaProducer

from tests.compat.compaction.bulk_clients import Record
from tests.compat.compaction.compacted_topic import HOUR_MS, ROLL_KEY, now_ms
from tests.compat.compaction.expected import by_partition_offset, check_in_place, check_sound, latest, superseded
from tests.compat.support import DEADLINE_S, eventually
from tests.sampling import THOROUGH

pytestmark = [pytest.mark.feature("compaction"), pytest.mark.client("kafka_tools")]

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
PARTITIONS = 2
# Empty, text, bytes, of about 32 bytes, and long keys that differ only at their ends.
KEYS = [
    b"",
    "ключ".encode(),
    "鍵🗝".encode(),
    b"\0",
    b"\0\0",
    bytes(range(256)),
    *(b"x" * size for size in (31, 32, 33)),
    *(b"k" * 5_000 + b"%d" % number for number in range(3)),
    b"L" * 100_000,
    *(b"key-%d" % number for number in range(40)),
]


def records_of(count: int, seed: str, keys: list[bytes] = KEYS) -> list[Record]:
    """Return random records: several of each key, some tombstones, empty values and headers."""
    chance = random.Random(seed)
    start = now_ms() - count
    records = []
    for number in range(count):
        value = b"%s %d " % (seed.encode(), number) + b"." * chance.choice((0, 20, 300))
        headers = ((b"n", b"%d" % number), (b"nothing", None)) if chance.random() < 0.2 else ()
        kind = chance.random()
        content = None if kind < 0.1 else b"" if kind < 0.13 else value
        records.append(Record(chance.randrange(PARTITIONS), -1, start + number, chance.choice(keys), content, headers))
    return records


def by_confluent(bootstrap: str, topic: str, records: list[Record], codec: str, idempotent: bool) -> list[Record]:
    offsets = {}
    sender = Producer(
        {
            "bootstrap.servers": bootstrap,
            "compression.type": codec,
            "enable.idempotence": idempotent,
            "batch.num.messages": 40,
            "linger.ms": 5,
        }
    )
    for number, record in enumerate(records):
        sender.produce(
            topic,
            record.value,
            record.key,
            partition=record.partition,
            timestamp=record.timestamp,
            headers=[(name.decode(), content) for name, content in record.headers],
            on_delivery=lambda error, message, number=number: offsets.update({number: error or message.offset()}),
        )
        sender.poll(0)
    assert sender.flush(DEADLINE_S) == 0
    return [record._replace(offset=offsets[number]) for number, record in enumerate(records)]


def by_kafka_python(bootstrap: str, topic: str, records: list[Record], codec: str, idempotent: bool) -> list[Record]:
    sender = KafkaProducer(
        bootstrap_servers=bootstrap,
        compression_type=None if codec == "none" else codec,
        enable_idempotence=idempotent,
        linger_ms=5,
        batch_size=8_000,
    )
    sent = [
        sender.send(
            topic,
            record.value,
            record.key,
            [(name.decode(), content) for name, content in record.headers if content is not None],
            record.partition,
            record.timestamp,
        )
        for record in records
    ]
    sender.flush(DEADLINE_S)
    written = [
        record._replace(
            offset=future.get(DEADLINE_S).offset,
            headers=tuple(header for header in record.headers if header[1] is not None),
        )
        for record, future in zip(records, sent, strict=True)
    ]
    sender.close()
    return written


def test_all_producers_and_codecs(jvm, compacted):
    """Every producer writes the same keys to the same partitions with every codec, before and after a compaction."""
    topic = compacted(PARTITIONS, {"min.compaction.lag.ms": str(HOUR_MS), "segment.bytes": str(1 << 20)})
    acknowledged: list[Record] = []
    for which, codec in enumerate((*CODECS, *CODECS) if THOROUGH else CODECS):
        idempotent = which % 2 == 0
        acknowledged += topic.send(
            records_of(150, f"java-{which}"),
            compression_type=codec,
            enable_idempotence=str(idempotent).lower(),
            linger_ms=5,
            batch_size=8_000,
        )
        acknowledged += by_confluent(
            topic.bootstrap, topic.name, records_of(150, f"confluent-{which}"), codec, idempotent
        )
        acknowledged += by_kafka_python(
            topic.bootstrap, topic.name, records_of(150, f"python-{which}"), codec, idempotent
        )
    lines = "".join(f"key-{n % 50}:{'NULL' if n % 7 == 0 else f'console {n}'}\n" for n in range(300))
    jvm.check(
        "kafka-console-producer", "--bootstrap-server", topic.bootstrap, "--topic", topic.name,
        "--reader-property", "parse.key=true", "--reader-property", "key.separator=:",
        "--reader-property", "null.marker=NULL", stdin=lines,
    )  # fmt: skip
    acknowledged += topic.send([Record(p, -1, now_ms(), key, None) for p in (0, 1) for key in KEYS[::3]])

    before = topic.read()
    ends = topic.ends()
    assert len(before) == len(acknowledged) + 300 == sum(ends), "nothing is compacted yet"
    check_in_place(by_partition_offset(acknowledged), before)
    topic.roll()
    topic.alter({"min.compaction.lag.ms": None})
    after = topic.read_compacted(before)
    assert [r for r in after if r.key != ROLL_KEY] == latest(before), "the last record of each key, tombstones included"
    assert all(now > end for now, end in zip(topic.ends(), ends, strict=True))

    # The same keys again, in a log that has been compacted.
    before = [r for r in after if r.key != ROLL_KEY] + topic.send(records_of(500, "again"), compression_type="lz4")
    after = topic.read_compacted(before)
    assert [r for r in after if r.key != ROLL_KEY] == latest(before)


def test_tombstones_before_and_after_delete_retention(compacted):
    """delete.retention.ms counts from the compaction that first kept the tombstone."""
    long, short = compacted(), compacted(1, {"delete.retention.ms": "1500"})
    written = {}
    for topic in (long, short):
        records = [Record(0, -1, now_ms(), b"%d" % (n % 20), b"value %d" % n) for n in range(200)]
        gone = [Record(0, -1, now_ms(), b"%d" % n, None) for n in range(10)]
        written[topic] = topic.send(records + gone)
    for topic, before in written.items():
        after = topic.read_compacted(before, tombstones=topic is long)
        assert [r for r in after if r.key != ROLL_KEY and r.value] == [r for r in latest(before) if r.value]

    def tombstones(topic):
        topic.roll()
        now = topic.read()
        check_sound(written[topic], now, tombstones=topic is long)
        return [r.offset for r in now if r.value is None]

    eventually(lambda: not tombstones(short), "the tombstones are gone", interval=0.1)
    assert tombstones(long) == list(range(200, 210))


def test_a_tombstone_is_kept_for_delete_retention(compacted):
    """A consumer that reads within delete.retention.ms reads every deletion."""
    topic = compacted(1, {"delete.retention.ms": "2000"})
    began = now_ms()
    before = topic.send([Record(0, -1, now_ms(), b"k", b"v"), Record(0, -1, now_ms(), b"k", None)])
    last_read = deleted_ms = began

    def over():
        nonlocal last_read, deleted_ms
        read_at = now_ms()
        topic.roll()
        tombstones = [r for r in topic.read() if r.key == b"k" and r.value is None]
        last_read, deleted_ms = (read_at, deleted_ms) if tombstones else (last_read, now_ms())
        return not tombstones

    eventually(over, "the tombstone is gone", interval=0.05)
    assert deleted_ms - began >= 2000, f"removed after {deleted_ms - began} ms, last read after {last_read - began} ms"
    assert [r for r in topic.read() if r.key == b"k"] == []
    assert before[1].offset == 1


def test_min_compaction_lag_keeps_young_records(compacted):
    """Segments with a record younger than min.compaction.lag.ms are not compacted."""
    topic = compacted(1, {"min.compaction.lag.ms": str(HOUR_MS)})
    long_ago = now_ms() - 5 * HOUR_MS
    old = topic.send([Record(0, -1, long_ago + n, b"%d" % (n % 10), b"old %d" % n) for n in range(100)])
    # By its timestamps the segment rolls here.
    young = topic.send([Record(0, -1, now_ms(), b"%d" % (n % 10), b"young %d" % n) for n in range(100)])
    now = topic.read_compacted(old)
    check_in_place(by_partition_offset(old + young), now)
    assert [r for r in now if r.offset < 200] == latest(old) + young
    topic.alter({"min.compaction.lag.ms": "0"})
    now = topic.read_compacted(old + young)
    assert [r for r in now if r.offset < 200] == latest(old + young)


def test_max_compaction_lag(compacted):
    """A log below min.cleanable.dirty.ratio is compacted after max.compaction.lag.ms."""
    topic = compacted(1, {"min.cleanable.dirty.ratio": "1.0", "segment.ms": str(HOUR_MS)})
    other = compacted()
    records = [Record(0, -1, now_ms(), b"%d" % (n % 10), b"%d" % n) for n in range(100)]
    before = topic.send(records)
    for _ in range(2):
        other.read_compacted(other.send(records))
    assert topic.read() == before, "the cleaner has not compacted it"
    # This also rolls the segment, which segment.ms would keep for an hour.
    topic.alter({"max.compaction.lag.ms": "300"})
    now = topic.read_compacted(before)
    assert [r for r in now if r.key != ROLL_KEY] == latest(before)


def test_compact_and_delete(compacted):
    """Retention deletes whole segments, the others are compacted."""
    configs = {"cleanup.policy": "compact,delete", "retention.ms": str(2 * HOUR_MS)}
    topic = compacted(1, configs)
    long_ago = now_ms() - 5 * HOUR_MS
    old = topic.send([Record(0, -1, long_ago + n, b"old %d" % (n % 10), b"%d" % n) for n in range(100)])
    young = topic.send([Record(0, -1, now_ms() + n, b"%d" % (n % 10), b"%d" % n) for n in range(100)])

    def without_old():
        topic.roll()
        now = topic.read()
        check_in_place(by_partition_offset(old + young), now)
        check_sound(young, now)
        return not [r for r in now if r.offset < 100]

    eventually(without_old, "the old segment is deleted", interval=0.1)
    now = topic.read_compacted(young)
    assert [r for r in now if r.key != ROLL_KEY] == latest(young)


def test_policy_altered_to_compact(compacted):
    """Changes of cleanup.policy take effect on existing records."""
    topic = compacted(1, {"cleanup.policy": "delete"})
    records = [Record(0, -1, now_ms(), b"%d" % (n % 10), b"%d" % n) for n in range(100)]
    before = topic.send(records)
    topic.roll()
    topic.alter({"cleanup.policy": "compact"})
    now = topic.read_compacted(before)
    assert [r for r in now if r.key != ROLL_KEY] == latest(before)
    topic.alter({"cleanup.policy": "delete"})
    now = topic.read()
    later = topic.send(records)
    other = compacted()
    for _ in range(2):
        topic.roll()
        other.read_compacted(other.send(records))
    check_in_place(by_partition_offset(later), topic.read())
    assert len(superseded(now + later, topic.read())) >= 100, "no more records are compacted"


def test_positions_of_removed_records(compacted, group):
    """Committed offsets, seeks and timestamps of removed records lead to the next record."""
    topic = compacted()
    start = now_ms() - 1000
    before = topic.send([Record(0, -1, start + n, b"%d" % (n % 10), b"value %d" % n) for n in range(200)])
    reader = topic.clients.reader(topic.bootstrap, topic.name, group)
    reader.commit(55)
    topic.read_compacted(before)
    kept = [r.offset for r in latest(before)]
    assert kept == list(range(190, 200))
    assert reader.committed() == 55, "the committed offset is not changed"
    for position in (0, 1, 55, 189, 190, 195):
        reader.seek(position)
        assert reader.next_offset() == max(position, 190)
    assert reader.offset_for_time(start) == 190, "the first record since then"
    assert reader.offset_for_time(start + 195) == 195
    assert reader.beginning() == 0, "the log start offset does not move"
    reader.close()


def test_log_append_time_stays(compacted):
    """Removing records does not change the append time of a batch."""
    topic = compacted(1, {"message.timestamp.type": "LogAppendTime", "segment.ms": "1000"})
    records = [
        Record(0, -1, 1_000, b"%d" % (n % 40), None if n % 3 == 0 else b"%d" % n, ((b"n", b"%d" % n),))
        for n in range(200)
    ]
    topic.send(records, compression_type="lz4", linger_ms=20)
    before = topic.read()
    assert min(record.timestamp for record in before) > now_ms() - HOUR_MS
    now = topic.read_compacted(before)
    assert [r for r in now if r.key != ROLL_KEY] == latest(before)


def test_records_deleted_from_a_compacted_topic(compacted):
    """This is possible only with compact,delete; the records after the new start are still compacted."""
    topic = compacted(1, {"min.compaction.lag.ms": str(HOUR_MS)})
    before = topic.send([Record(0, -1, now_ms(), b"%d" % (n % 50), b"%d" % n) for n in range(200)])
    with pytest.raises(KafkaException, match="POLICY_VIOLATION"):
        topic.delete_records(170)
    topic.alter({"cleanup.policy": "compact,delete"})
    eventually(lambda: topic.delete_records(170) == 170, "records are deleted")
    assert topic.read() == before[170:]
    topic.alter({"min.compaction.lag.ms": None})
    again = topic.send([Record(0, -1, now_ms(), b"%d" % n, b"again") for n in range(30, 40)])
    now = topic.read_compacted(before[170:] + again)
    assert [r for r in now if r.key != ROLL_KEY] == latest(before[170:] + again)
