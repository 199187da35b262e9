"""Live aggregates against the same computed in plain Python: over restarts, with late and unusable records."""

import json
import statistics
import threading
from collections import defaultdict
from datetime import UTC, datetime

import pytest

from kbroker.pipeline.aggregate import Definition, Key
from kbroker.pipeline.aggregate_query import Aggregation, How, Target

pytestmark = [pytest.mark.spark, pytest.mark.feature("live aggregates")]

MINUTE, HOUR = 60_000, 3_600_000
T0 = 1_356_998_400_000  # 2013-01-01T00:00:00Z


def definition(topic, **changes):
    values = {"topics": (topic,), "window_ms": HOUR, "slide_ms": HOUR}
    return Definition(**values | changes)


def run(spark, bootstrap, what, target, checkpoint="", **how):
    """One run up to the end of the topics; gives its summary."""
    aggregation = Aggregation(spark, bootstrap, what, target, checkpoint)
    return aggregation.run(How(**how), lambda batch: None, threading.Event())


def expected(events, window=HOUR, slide=HOUR):
    """{(window's start in ms, group): the numbers, ascending} of (time in ms, group, number)."""
    found = defaultdict(list)
    for at, group, number in events:
        start = at // slide * slide
        while start > at - window:
            found[start, group].append(number)
            start -= slide
    return {at: sorted(numbers) for at, numbers in found.items()}


def iso(ms):
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"


def measurements(count, seed=1):
    """Events of ten hours, out of order by up to some minutes; numbers that are exact as doubles."""
    state = seed
    for i in range(count):
        state = state * 1103515245 + 12345 & 0x7FFFFFFF
        yield T0 + i * 10 * HOUR // count + state % (10 * MINUTE), "abc"[state % 3], (state % 4001 - 2000) / 8


def as_json(event, form=lambda ms: ms):
    at, group, number = event
    return {"value": json.dumps({"at": form(at), "who": {"name": group}, "n": number})}


JSON = {
    "keys": (Key("name", "$.who.name"),),
    "time": "$.at",
    "value": "$.n",
    "compute": ("count", "values", "sum", "min", "max", "avg", "p50", "p99.9"),
}


def test_parquet_equals_a_batch_computation_over_restarts(spark, bootstrap, topics, tmp_path):
    source = topics.create(partitions=3)
    what, target = definition(source, **JSON, watermark_ms=12 * HOUR), Target(directory=str(tmp_path / "out"))
    events = list(measurements(2400))
    forms = [iso, lambda ms: ms, lambda ms: ms / 1000, lambda ms: iso(ms).replace("T", " ").removesuffix("Z")]
    told = [as_json(event, forms[i % 4]) for i, event in enumerate(events)]
    # Each fifth of the first half comes with the second: hours late, and within the watermark.
    late = told[:1200:5]
    topics.fill(source, (record for record in told[:1200] if record not in late))
    first = run(spark, bootstrap, what, target)
    topics.fill(source, [*told[1200:], *late])
    second = run(spark, bootstrap, what, target, most_records=800)
    assert second.batches > 1
    for summary, records in ((first, 960), (second, 1440)):
        assert (summary.records, summary.late, sum(summary.problems.values())) == (records, 0, 0)
    rows = spark.read.parquet(str(tmp_path / "out")).collect()
    found = {(round(row.window_start.replace(tzinfo=UTC).timestamp() * 1000), row.name): row for row in rows}
    wanted = expected(events)
    assert len(rows) == len(found)
    assert found.keys() == wanted.keys()
    for at, numbers in wanted.items():
        row = found[at]
        assert (row["count"], row["values"], row["min"], row["max"]) == (len(numbers),) * 2 + (numbers[0], numbers[-1])
        assert (row["sum"], row.avg, row.p50) == (sum(numbers), sum(numbers) / len(numbers), statistics.median(numbers))
        assert numbers[-2] <= row.p99_9 <= numbers[-1]
        assert str(row.date) == iso(at[0])[:10]


def results(topics, name):
    """The last value of each key, both as they are in the topic."""
    last = {message.key(): json.loads(message.value()) for message in topics.read(name)}
    for key, value in last.items():
        assert value.items() >= json.loads(key).items()
    return list(last.values())


def test_a_topic_has_the_right_numbers_last_and_late_records_are_counted(spark, bootstrap, topics, tmp_path):
    source, out = topics.create(partitions=2), topics.create(partitions=2, configs={"cleanup.policy": "compact"})
    sliding = {"window_ms": 30 * MINUTE, "slide_ms": 10 * MINUTE, "watermark_ms": 20 * MINUTE}
    what, target = definition(source, keys=(Key("key", "key"),), **sliding), Target(topic=out)

    def send(events):
        topics.fill(source, ({"value": b"1234", "key": key, "timestamp": at} for at, key, _ in events))

    def do():
        return run(spark, bootstrap, what, target, str(tmp_path / "state"))

    begin = [(T0 + minute * MINUTE, key, 8 + bool(key)) for minute in range(120) for key in ("a", None)]
    send(begin)
    assert do().late == 0
    # The watermark is at 01:39. A record of 01:12 is in the windows from 01:10 (open), 01:00 and 00:50 (closed), and
    # late for the latter two. One of 01:31 is in time for all; one of 00:05 is in time for none.
    inside, partly, outside = ((T0 + minute * MINUTE, "a", 5) for minute in (91, 72, 5))
    send([inside, partly, outside, outside])
    assert do().late == 3
    kept = expected([*begin, inside, partly], 30 * MINUTE, 10 * MINUTE)
    closed = {(T0 + minute * MINUTE, "a") for minute in (50, 60)}
    rows = {(row["window_start"], row["key"]): row["count"] for row in results(topics, out)}
    wanted = {(iso(at), key): len(n) - ((at, key) in closed) for (at, key), n in kept.items()}
    assert rows == wanted
    sizes = {row["bytes"] / row["count"] for row in results(topics, out)}
    assert sizes == {5.0, 4.0}
