"""Structured Streaming with Kafka as source and sink: progress, restarts, limits, topics that change."""

import json
import time

import pytest

from tests.compat.spark.helpers import finish, load, numbered, numbers, wait_for_numbers
from tests.compat.support import eventually, unique

pytestmark = [pytest.mark.spark, pytest.mark.feature("streaming")]

EARLIEST = {"startingOffsets": "earliest"}
HOUR_MS = 3600 * 1000


@pytest.fixture
def table(request):
    """A unique table name for the result of a query."""
    return unique(request.node.originalname).replace("-", "_")


def test_restarts_from_a_checkpoint_lose_and_duplicate_nothing(spark, bootstrap, topics, streams):
    name = topics.create(partitions=3)
    frame = load(spark.readStream, bootstrap, name, **EARLIEST, maxOffsetsPerTrigger=400).select("value")
    for block in range(3):
        topics.fill(name, numbered(range(block * 1000, block * 1000 + 1000), 3))
        query = streams.to_files(frame)
        eventually(lambda query=query: query.lastProgress and query.lastProgress["numInputRows"], "a batch")
        query.stop()
    topics.fill(name, numbered(range(3000, 3010), 3))
    finish(streams.to_files(frame, availableNow=True))
    assert numbers(streams.files()) == list(range(3010))


def test_available_now_ends_at_the_end_offsets_of_its_start(spark, bootstrap, topics, streams):
    name = topics.create(partitions=2)
    topics.fill(name, numbered(range(1000), 2))
    batches: list[list[int]] = []

    def on_batch(frame, batch_id):
        batches.append(numbers(frame))
        topics.fill(name, numbered(range(1000 + 10 * batch_id, 1010 + 10 * batch_id), 2))

    frame = load(spark.readStream, bootstrap, name, **EARLIEST, maxOffsetsPerTrigger=400)
    finish(streams.run(frame.writeStream.foreachBatch(on_batch), availableNow=True))
    assert [len(rows) for rows in batches] == [400, 400, 200]
    assert sorted(n for rows in batches for n in rows) == list(range(1000))
    batches.clear()
    finish(streams.run(frame.writeStream.foreachBatch(on_batch), availableNow=True))
    assert batches == [list(range(1000, 1030))]


def test_max_offsets_per_trigger_is_divided_among_the_partitions(spark, bootstrap, topics, streams, table):
    name = topics.create(partitions=2)
    topics.fill(name, ({"value": str(n).encode(), "partition": n % 10 == 0} for n in range(1000)))
    frame = load(spark.readStream, bootstrap, name, **EARLIEST, maxOffsetsPerTrigger=300)
    batches = finish(streams.to_memory(frame, table, availableNow=True))
    sizes = [batch["numInputRows"] for batch in batches]
    assert all(size <= 301 for size in sizes), sizes
    assert numbers(spark.table(table)) == list(range(1000))
    ends = [batch["sources"][0]["endOffset"][name] for batch in batches]
    assert ends[0]["0"] == pytest.approx(270, abs=1)
    assert ends[-1] == {"0": 900, "1": 100}


def test_min_partitions_splits_every_batch(spark, bootstrap, topics, streams):
    name = topics.create(partitions=2)
    topics.fill(name, numbered(range(600), 2))
    batches = []
    frame = load(spark.readStream, bootstrap, name, **EARLIEST, minPartitions=5)
    writer = frame.writeStream.foreachBatch(
        lambda part, _: batches.append((part.rdd.getNumPartitions(), numbers(part)))
    )
    finish(streams.run(writer, availableNow=True))
    [(partitions, values)] = batches
    assert partitions >= 5
    assert values == list(range(600))


def test_a_topic_created_later_matches_the_pattern(spark, bootstrap, topics, streams, table):
    stem = unique("pattern")
    topics.fill(topics.create(name=f"{stem}-a"), numbered(range(10)))
    topics.fill(topics.create(name=f"other-{stem}"), numbered(range(500, 510)))
    frame = load(spark.readStream, bootstrap, subscribePattern=f"{stem}-.*", **EARLIEST)
    query = streams.to_memory(frame, table)
    wait_for_numbers(query, lambda: spark.table(table), list(range(10)))
    topics.fill(topics.create(2, name=f"{stem}-b"), numbered(range(10, 20), 2))
    wait_for_numbers(query, lambda: spark.table(table), list(range(20)))


def test_partitions_added_later_are_read_from_their_start(spark, bootstrap, topics, streams, table):
    name = topics.create(partitions=1)
    topics.fill(name, numbered(range(10)))
    query = streams.to_memory(load(spark.readStream, bootstrap, name, **EARLIEST), table)
    wait_for_numbers(query, lambda: spark.table(table), list(range(10)))
    topics.grow(name, 3)
    topics.fill(name, numbered(range(10, 40), 3))
    wait_for_numbers(query, lambda: spark.table(table), list(range(40)))


def test_a_stream_starts_at_the_end_at_offsets_or_at_a_timestamp(spark, bootstrap, topics, streams):
    name = topics.create(partitions=2)
    start = int(time.time() * 1000) - HOUR_MS
    topics.fill(name, ({**record, "timestamp": start + n * 1000} for n, record in enumerate(numbered(range(100), 2))))
    times = json.dumps({name: {"0": start + 40_000, "1": start + 80_000}})
    starts = [
        ({}, []),
        ({"startingOffsets": json.dumps({name: {"0": 48, "1": -1}})}, [96, 98]),
        ({"startingOffsetsByTimestamp": times}, sorted([*range(40, 100, 2), *range(81, 100, 2)])),
        ({"startingTimestamp": start + 97_500}, [98, 99]),
    ]
    queries = []
    for index, (options, old_numbers) in enumerate(starts):
        frame = load(spark.readStream, bootstrap, name, **options)
        if "startingTimestamp" in options:
            frame = load(spark.readStream, bootstrap, name, **options, startingOffsetsByTimestampStrategy="latest")
        result = unique("start").replace("-", "_")
        queries.append((streams.to_memory(frame, result, checkpoint=f"start-{index}"), result, old_numbers))
    for query, _, _ in queries:  # the first batch fixes the start
        eventually(lambda query=query: query.lastProgress, "the query's first progress")
    topics.fill(name, numbered(range(100, 110), 2))
    for query, result, old_numbers in queries:
        wait_for_numbers(query, lambda result=result: spark.table(result), [*old_numbers, *range(100, 110)])
        query.stop()


def test_a_stream_copies_records_with_headers_and_keys(spark, bootstrap, topics, streams):
    source, sink = topics.create(partitions=2), topics.create(partitions=2)
    records = [
        {"key": b"k", "value": b"v", "headers": [("trace", b"1"), ("trace", None)], "partition": 1},
        {"key": None, "value": b"\x00\xff", "partition": 1},
        {"key": b"tombstone", "value": None, "partition": 0},
    ]
    topics.fill(source, records)
    frame = load(spark.readStream, bootstrap, source, **EARLIEST, includeHeaders="true")
    frame = frame.selectExpr(f"'{sink}' AS topic", "partition", "key", "value", "headers")
    finish(streams.to_topic(frame, bootstrap, availableNow=True))
    copied = {(m.partition(), m.key(), m.value(), str(m.headers())) for m in topics.read(sink)}
    assert copied == {(r["partition"], r["key"], r["value"], str(r.get("headers"))) for r in records}


def test_lost_records_fail_a_stream_unless_it_accepts_the_loss(spark, bootstrap, topics, streams):
    name = topics.create()
    topics.fill(name, numbered(range(100)))

    def run(fail_on_data_loss):
        frame = load(spark.readStream, bootstrap, name, **EARLIEST, failOnDataLoss=fail_on_data_loss).select("value")
        finish(streams.to_files(frame, availableNow=True))

    run("true")
    topics.fill(name, numbered(range(100, 200)))
    topics.delete_before(name, 0, 150)
    with pytest.raises(Exception, match=r"(?i)data may have been lost"):
        run("true")
    run("false")
    assert numbers(streams.files()) == [*range(100), *range(150, 200)]


def test_windows_are_closed_by_the_records_timestamps(spark, bootstrap, topics, streams):
    name, sink = topics.create(partitions=2), topics.create()
    start = (int(time.time()) // 3600 - 24) * HOUR_MS

    def records_of_minute(number):
        """Yield ten records of this minute."""
        return ({**r, "timestamp": start + number * 60_000 + n} for n, r in enumerate(numbered(range(10), 2)))

    frame = load(spark.readStream, bootstrap, name, **EARLIEST).withWatermark("timestamp", "1 minute")
    frame = frame.selectExpr("window(timestamp, '1 minute') AS w").groupBy("w").count()
    frame = frame.selectExpr("CAST(unix_millis(w.start) AS STRING) AS key", "CAST(count AS STRING) AS value")
    for numbers_of_minutes in ((0, 1), (1, 5), (9,)):
        for number in numbers_of_minutes:
            topics.fill(name, records_of_minute(number))
        finish(streams.to_topic(frame, bootstrap, sink, availableNow=True))
    closed = {((int(m.key()) - start) // 60_000, int(m.value())) for m in topics.read(sink)}
    assert closed == {(0, 10), (1, 20), (5, 10)}


def test_continuous_processing(spark, bootstrap, topics, streams):
    source, sink = topics.create(), topics.create()
    frame = load(spark.readStream, bootstrap, source, **EARLIEST).selectExpr("value")
    query = streams.to_topic(frame, bootstrap, sink, continuous="1 second")
    for block in range(3):
        topics.fill(source, numbered(range(block * 100, block * 100 + 100)))
        wait_for_numbers(query, lambda: load(spark.read, bootstrap, sink), list(range(block * 100 + 100)))
