"""Spark reads topics with delayed records, views and closing partitions, in batches and streams."""

import json

import pytest

from tests.compat.queues.shrinking import CLOSING, remove_emptied, shrink
from tests.compat.spark.helpers import finish, load, numbered, numbers, wait_for_numbers
from tests.compat.support import eventually, need_own_broker, unique

pytestmark = [pytest.mark.spark, pytest.mark.feature("queues")]

EARLIEST = {"startingOffsets": "earliest", "failOnDataLoss": "true"}
HOUR = [("TIMER_DELAY_SEC", b"3600")]


def delayed(rows, delay_ms):
    return ({**record, "headers": [("TIMER_DELAY_MS", b"%d" % delay_ms)]} for record in numbered(rows))


def test_delayed_records_appear_when_they_are_due(spark, bootstrap, topics, streams):
    need_own_broker()
    name, table = topics.create(configs={"kbroker.delay.enable": "true"}), unique("delayed").replace("-", "_")
    frame = load(spark.readStream, bootstrap, name, **EARLIEST).select("value")
    query = streams.to_memory(frame, table)
    topics.fill(name, [*numbered(range(5)), *delayed(range(5, 10), 500)])
    wait_for_numbers(query, lambda: spark.table(table), list(range(10)))
    topics.fill(name, [*delayed(range(10, 15), 1500), *({"value": b"-1", "headers": HOUR} for _ in range(20))])
    wait_for_numbers(query, lambda: spark.table(table), list(range(15)))
    topics.fill(name, [*numbered(range(15, 20)), {"value": b"-1", "headers": HOUR}])
    wait_for_numbers(query, lambda: spark.table(table), list(range(20)))
    assert numbers(load(spark.read, bootstrap, name, **EARLIEST)) == list(range(20))

    # A query that ends at offsets of hidden records, and one that begins there.
    finish(streams.to_files(frame, checkpoint="to-files", availableNow=True))
    topics.fill(name, numbered(range(20, 25)))
    finish(streams.to_files(frame, checkpoint="to-files", availableNow=True))
    assert numbers(streams.files()) == list(range(25))


def test_a_view_is_read_as_a_topic_with_gaps(spark, bootstrap, topics, streams):
    need_own_broker()
    source, table = topics.create(partitions=2), unique("paid").replace("-", "_")
    view = topics.create(partitions=2, configs={"kbroker.view.of": source, "kbroker.view.filter": "paid"})

    def orders(rows):
        for n, record in zip(rows, numbered(rows, 2), strict=True):
            yield {**record, "headers": [("TAGS", b"open" if n % 5 else b"paid")]}

    topics.fill(source, orders(range(100)))
    query = streams.to_memory(load(spark.readStream, bootstrap, view, **EARLIEST).select("value"), table)
    wait_for_numbers(query, lambda: spark.table(table), list(range(0, 100, 5)))
    topics.fill(source, ({**r, "headers": [("TAGS", b"open")]} for r in numbered(range(1000, 1200), 2)))
    topics.fill(source, orders(range(200, 300)))
    expected = [*range(0, 100, 5), *range(200, 300, 5)]
    wait_for_numbers(query, lambda: spark.table(table), expected)
    topics.fill(source, ({**r, "headers": [("TAGS", b"open")]} for r in numbered(range(2000, 2050), 2)))
    eventually(lambda: sum(_end(query, view).values()) == 450, "the stream reaches the end of the source")
    assert numbers(load(spark.read, bootstrap, view, **EARLIEST)) == expected


def test_expired_records_are_gaps(spark, bootstrap, topics, streams):
    need_own_broker()
    name, table = topics.create(configs={"kbroker.ttl.enable": "true"}), unique("expiring").replace("-", "_")
    view = topics.create(configs={"kbroker.view.of": name, "kbroker.view.filter": "paid"})

    def expiring(rows):
        for n, record in zip(rows, numbered(rows), strict=True):
            tag = ("TAGS", b"open" if n % 2 else b"paid")
            yield {**record, "headers": [tag, ("TTL_MS", b"0" if n % 5 else b"3600000")]}

    topics.fill(name, expiring(range(100)))
    query = streams.to_memory(load(spark.readStream, bootstrap, name, **EARLIEST).select("value"), table)
    wait_for_numbers(query, lambda: spark.table(table), list(range(0, 100, 5)))
    topics.fill(name, ({**record, "headers": [("TTL_MS", b"0")]} for record in numbered(range(1000, 1100))))
    eventually(lambda: sum(_end(query, name).values()) == 200, "the stream reaches the end")
    topics.fill(name, expiring(range(100, 151)))
    wait_for_numbers(query, lambda: spark.table(table), list(range(0, 151, 5)))
    assert numbers(load(spark.read, bootstrap, name, **EARLIEST)) == list(range(0, 151, 5))
    assert numbers(load(spark.read, bootstrap, view, **EARLIEST)) == list(range(0, 151, 10))


def test_partitions_close_and_disappear_under_queries(spark, bootstrap, topics, streams):
    """With failOnDataLoss a query ends when they are gone, although it has read all; from then on it needs false."""
    need_own_broker()
    name, table = topics.create(partitions=3), unique("lenient").replace("-", "_")
    topics.fill(name, numbered(range(30), 3))
    strict_frame, frame = (
        load(spark.readStream, bootstrap, name, startingOffsets="earliest", failOnDataLoss=fail).select("value")
        for fail in ("true", "false")
    )
    strict, lenient = streams.to_files(strict_frame), streams.to_memory(frame, table, checkpoint="lenient")
    assert shrink(bootstrap, name) == CLOSING
    topics.fill(name, numbered(range(30, 60), 3))
    wait_for_numbers(lenient, lambda: spark.table(table), list(range(60)))
    wait_for_numbers(strict, streams.files, list(range(60)))
    assert numbers(load(spark.read, bootstrap, name, **EARLIEST)) == list(range(60))

    topics.delete_all(name, 1, 2)
    remove_emptied(bootstrap, name)
    topics.fill(name, numbered(range(60, 70)))
    wait_for_numbers(lenient, lambda: spark.table(table), list(range(70)))
    eventually(lambda: not strict.isActive, "the query with failOnDataLoss ends")
    assert f"{name}-1, {name}-2) have been deleted" in str(strict.exception())
    with pytest.raises(Exception, match="have been deleted"):
        finish(streams.to_files(strict_frame, availableNow=True))
    finish(streams.to_files(frame, availableNow=True))
    assert numbers(streams.files()) == list(range(70))
    # Its checkpoint knows the removed partitions no more.
    topics.fill(name, numbered(range(70, 72)))
    finish(streams.to_files(strict_frame, availableNow=True))
    assert numbers(streams.files()) == list(range(72))

    remaining = [*range(0, 30, 3), *range(30, 72)]
    assert numbers(load(spark.read, bootstrap, name, **EARLIEST)) == remaining
    for fail in ("true", "false"):
        start = json.dumps({name: {"0": -2, "1": 10}})
        with pytest.raises(Exception, match="don't match what are assigned"):
            numbers(load(spark.read, bootstrap, name, startingOffsets=start, failOnDataLoss=fail))


def _end(query, name):
    """Return the offsets that the query has reached, by partition."""
    assert query.isActive, f"the query ended: {query.exception()}"
    progress = [json.loads(p.json)["sources"][0]["endOffset"] for p in query.recentProgress]
    return next((end[name] for end in reversed(progress) if end), {})
