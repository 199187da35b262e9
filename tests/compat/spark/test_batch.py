"""Batch jobs: `spark.read` and `df.write` with Kafka as source and sink."""

import json
import time
from datetime import UTC, datetime

import pytest

from tests.compat.spark.helpers import load, numbered, numbers

pytestmark = [pytest.mark.spark, pytest.mark.feature("batch jobs")]

HOUR_MS = 3600 * 1000


def to_values(row):
    """Return a row as plain values: key, value, headers, topic, partition, offset, timestamp in ms, its type."""
    headers = [(h.key, bytes(h.value) if h.value is not None else None) for h in row.headers or []]
    key, value = (bytes(field) if field is not None else None for field in (row.key, row.value))
    return key, value, headers, row.topic, row.partition, row.offset, row.ms, row.timestampType


def collect_values(frame):
    rows = frame.selectExpr("*", "unix_millis(timestamp) AS ms").collect()
    return sorted(map(to_values, rows), key=lambda row: row[3:6])


def test_every_column_of_a_record_is_read(spark, bootstrap, topics):
    name = topics.create(partitions=2)
    now = int(time.time() * 1000)
    headers = [("trace", b"1"), ("trace", b"2"), ("empty", b""), ("null", None), ("ünïcode", b"\x00\xff")]
    written = [
        {"key": b"k", "value": b"v", "headers": headers, "partition": 0, "timestamp": now - HOUR_MS},
        {"key": None, "value": b"\x00\xff", "partition": 0, "timestamp": now},
        {"key": b"tombstone", "value": None, "partition": 1, "timestamp": now + 1},
        {"key": b"", "value": b"", "partition": 1, "timestamp": now + 2},
    ]
    topics.fill(name, written)

    frame = load(spark.read, bootstrap, name, includeHeaders="true")
    assert frame.dtypes == [
        ("key", "binary"),
        ("value", "binary"),
        ("topic", "string"),
        ("partition", "int"),
        ("offset", "bigint"),
        ("timestamp", "timestamp"),
        ("timestampType", "int"),
        ("headers", "array<struct<key:string,value:binary>>"),
    ]
    assert collect_values(frame) == [
        (r["key"], r["value"], r.get("headers", []), name, r["partition"], offset, r["timestamp"], 0)
        for r, offset in zip(written, (0, 1, 0, 1), strict=True)
    ]


def test_log_append_time_has_its_own_timestamp_type(spark, bootstrap, topics):
    name = topics.create(configs={"message.timestamp.type": "LogAppendTime"})
    before = int(time.time() * 1000)
    topics.fill(name, [{"value": b"v", "timestamp": before - HOUR_MS}])
    [row] = collect_values(load(spark.read, bootstrap, name, includeHeaders="true"))
    assert row[-1] == 1
    assert before <= row[-2] <= int(time.time() * 1000)


def test_a_client_reads_the_records_of_a_job(spark, bootstrap, topics):
    first, second = topics.create(partitions=3), topics.create()
    headers = [("trace", bytearray(b"1")), ("trace", bytearray(b"2")), ("null", None)]
    rows = [
        (bytearray(b"k"), bytearray(b"v"), first, 2, headers),
        (None, bytearray(b"\x00\xff"), first, 2, None),
        (bytearray(b"tombstone"), None, first, 1, []),
        (bytearray(b""), bytearray(b""), second, 0, headers[:1]),
    ]
    schema = "key binary, value binary, topic string, partition int, headers array<struct<key: string, value: binary>>"
    frame = spark.createDataFrame(rows, schema).coalesce(1)
    frame.write.format("kafka").option("kafka.bootstrap.servers", bootstrap).option("includeHeaders", "true").save()

    messages = [m for name in (first, second) for m in topics.read(name)]
    expected = [(2, first, 1, rows[2]), (0, first, 2, rows[0]), (1, first, 2, rows[1]), (0, second, 0, rows[3])]
    assert len(messages) == len(expected)
    for message, (_, name, partition, (key, value, _, _, sent)) in zip(messages, expected, strict=True):
        assert (message.topic(), message.partition()) == (name, partition)
        assert (message.key(), message.value()) == (key, value)
        assert message.headers() == (sent or None)


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_a_table_is_written_and_read_with_each_codec(spark, bootstrap, topics, codec):
    name = topics.create(partitions=4)
    table = spark.range(6_000).selectExpr("CAST(id % 97 AS STRING) AS key", "CAST(id AS STRING) AS value")
    writer = table.write.format("kafka").option("kafka.bootstrap.servers", bootstrap).option("topic", name)
    writer.option("kafka.compression.type", codec).option("kafka.linger.ms", "5").save()
    result = load(spark.read, bootstrap, name)
    assert numbers(result) == list(range(6_000))
    key_partitions = result.selectExpr("CAST(key AS STRING) AS key", "partition").distinct()
    assert key_partitions.count() == 97, "records of one key must be in one partition"


def test_several_topics_by_list_by_pattern_and_by_partition(spark, bootstrap, topics):
    first, second, other = topics.create(2), topics.create(1), topics.create(1)
    for start, name, partitions in ((0, first, 2), (100, second, 1), (200, other, 1)):
        topics.fill(name, numbered(range(start, start + 10), partitions))
    both = [*range(10), *range(100, 110)]
    assert numbers(load(spark.read, bootstrap, f"{first},{second}")) == both
    assert numbers(load(spark.read, bootstrap, subscribePattern=f"({first}|{second}).*")) == both
    assigned = json.dumps({first: [1], other: [0]})
    assert numbers(load(spark.read, bootstrap, assign=assigned)) == [1, 3, 5, 7, 9, *range(200, 210)]


def test_starting_and_ending_offsets(spark, bootstrap, topics):
    name = topics.create(partitions=3)
    topics.fill(name, numbered(range(300), 3))  # partition p holds p, p + 3, ... at offsets 0 to 99

    def between(start, end):
        return numbers(load(spark.read, bootstrap, name, startingOffsets=start, endingOffsets=end))

    assert between("earliest", "latest") == list(range(300))
    start = json.dumps({name: {"0": 10, "1": -2, "2": 99}})
    end = json.dumps({name: {"0": 20, "1": 1, "2": -1}})
    assert between(start, end) == sorted([*range(30, 60, 3), 1, 299])
    after = json.dumps({name: {"0": 20, "1": 1, "2": 100}})
    assert between(after, "latest") == sorted([*range(60, 300, 3), *range(4, 300, 3)])


def test_starting_and_ending_offsets_by_timestamp(spark, bootstrap, topics):
    name = topics.create(partitions=2)
    start = int(time.time() * 1000) - HOUR_MS
    topics.fill(name, ({**record, "timestamp": start + n * 1000} for n, record in enumerate(numbered(range(100), 2))))

    def between(**options):
        return numbers(load(spark.read, bootstrap, name, **options))

    def at(*seconds):
        return json.dumps({name: {str(p): start + s * 1000 for p, s in enumerate(seconds)}})

    selected = between(startingOffsetsByTimestamp=at(40, 80), endingOffsetsByTimestamp=at(50, 200))
    assert selected == sorted([*range(40, 50, 2), *range(81, 100, 2)])
    assert between(startingTimestamp=start + 95_000) == [95, 96, 97, 98, 99]
    assert between(endingTimestamp=start + 4_500) == [0, 1, 2, 3, 4]
    late = {"startingTimestamp": start + HOUR_MS // 2}
    assert between(**late, startingOffsetsByTimestampStrategy="latest") == []
    with pytest.raises(Exception, match=r"(?i)no offset matched"):
        between(**late)


def test_min_partitions_splits_the_topic(spark, bootstrap, topics):
    name = topics.create(partitions=2)
    topics.fill(name, numbered(range(1000), 2))
    frame = load(spark.read, bootstrap, name, minPartitions=7, includeHeaders="true")
    assert frame.rdd.getNumPartitions() >= 7
    assert numbers(frame) == list(range(1000))
    assert load(spark.read, bootstrap, name).rdd.getNumPartitions() == 2


def test_deleted_records_fail_a_job_unless_it_accepts_the_loss(spark, bootstrap, topics):
    name = topics.create()
    topics.fill(name, numbered(range(100)))
    topics.delete_before(name, 0, 40)
    assert numbers(load(spark.read, bootstrap, name)) == list(range(40, 100))
    early = {"startingOffsets": json.dumps({name: {"0": 10}})}
    assert numbers(load(spark.read, bootstrap, name, **early, failOnDataLoss="false")) == list(range(40, 100))
    with pytest.raises(Exception, match=r"(?i)some data may have been lost|out of range"):
        numbers(load(spark.read, bootstrap, name, **early))


def test_read_committed_returns_records_without_a_transaction(spark, bootstrap, topics):
    name = topics.create()
    topics.fill(name, numbered(range(50)))
    assert numbers(load(spark.read, bootstrap, name, kafka__isolation__level="read_committed")) == list(range(50))


def test_a_missing_topic_fails_the_job(spark, bootstrap, name):
    with pytest.raises(Exception, match="UnknownTopicOrPartition"):
        load(spark.read, bootstrap, name).count()
    frame = spark.createDataFrame([("v",)], "value string")
    writer = frame.write.format("kafka").option("kafka.bootstrap.servers", bootstrap)
    with pytest.raises(Exception, match=r"(?i)topic"):
        writer.save()


def test_timestamps_become_timestamps_of_spark(spark, bootstrap, topics):
    name = topics.create()
    moment = datetime(2026, 1, 31, 23, 59, 59, 123_000, tzinfo=UTC)
    topics.fill(name, [{"value": b"v", "timestamp": int(moment.timestamp() * 1000)}])
    [row] = load(spark.read, bootstrap, name).selectExpr("CAST(timestamp AS STRING) AS text").collect()
    assert row.text == "2026-01-31 23:59:59.123"
