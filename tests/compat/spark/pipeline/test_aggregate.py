"""Live aggregates against the same computed in plain Python: over restarts, with late and unusable records."""

import csv
import json
import statistics
import sys
import threading
from collections import defaultdict
from datetime import UTC, datetime
from pathlib import Path

import pyarrow
import pyarrow.parquet as parquet
import pytest

from kbroker.cli.app import run as main
from kbroker.cli.pipeline.run_file import run_file
from kbroker.pipeline.aggregate import result_files as aggregate_files
from kbroker.pipeline.aggregate import result_plot as aggregate_plot
from kbroker.pipeline.aggregate.definition import AggregateDefinition, GroupKey
from kbroker.pipeline.aggregate.query import AggregateQuery, ResultSink, RunOptions
from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.storage.local import LocalStorage
from tests.compat.spark.flights import weather_lines
from tests.compat.support import unique

pytestmark = [pytest.mark.spark, pytest.mark.feature("live aggregates")]

MINUTE, HOUR = 60_000, 3_600_000
T0 = 1_356_998_400_000  # 2013-01-01T00:00:00Z


def definition(topic, **changes):
    values = {"topics": (topic,), "window_ms": HOUR, "slide_ms": HOUR}
    return AggregateDefinition(**values | changes)


def run(spark, bootstrap, what, target, checkpoint="", **how):
    """One run up to the end of the topics; gives its summary."""
    aggregation = AggregateQuery(spark, bootstrap, what, target, checkpoint)
    return aggregation.run(RunOptions(**how), lambda batch: None, threading.Event())


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
    "keys": (GroupKey("name", "$.who.name"),),
    "time": "$.at",
    "value": "$.n",
    "compute": ("count", "values", "sum", "min", "max", "avg", "p50", "p99.9"),
}


def test_parquet_equals_a_batch_computation_over_restarts(spark, bootstrap, topics, tmp_path):
    source = topics.create(partitions=3)
    what, target = definition(source, **JSON, watermark_ms=12 * HOUR), ResultSink(directory=str(tmp_path / "out"))
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


def test_a_directory_whose_name_is_a_pattern_has_its_own_rows(spark, tmp_path):
    """The pattern matches a neighbour, and not the directory itself."""
    what, here = (
        definition("t", keys=(GroupKey("key", "key"),), compute=("count",)),
        LocalStorage(str(tmp_path / "x[1]")),
    )
    at, path = datetime.fromtimestamp(T0 / 1000, UTC), aggregate_files.result_path("2013-01-01")

    def merge(**counts):
        rows = [(at, key, count) for key, count in counts.items()]
        changed = spark.createDataFrame(rows, "window_start timestamp, key string, count long")
        aggregate_files.merge_results(here, what, changed.coalesce(1))

    merge(a=1, b=2)
    (tmp_path / "x1" / path).parent.mkdir(parents=True)
    parquet.write_table(pyarrow.table({"window_start": [at], "key": ["c"], "count": [9]}), tmp_path / "x1" / path)
    merge(b=3)
    found = aggregate_plot.read_results(spark, here).select("key", "count").collect()
    assert sorted(map(tuple, found)) == [("a", 1), ("b", 3)]


def results(topics, name):
    """The last value of each key, both as they are in the topic."""
    last = {message.key(): json.loads(message.value()) for message in topics.read(name)}
    for key, value in last.items():
        assert value.items() >= json.loads(key).items()
    return list(last.values())


def test_a_topic_has_the_right_numbers_last_and_late_records_are_counted(spark, bootstrap, topics, tmp_path):
    source, out = topics.create(partitions=2), topics.create(partitions=2, configs={"cleanup.policy": "compact"})
    sliding = {"window_ms": 30 * MINUTE, "slide_ms": 10 * MINUTE, "watermark_ms": 20 * MINUTE}
    what, target = definition(source, keys=(GroupKey("key", "key"),), **sliding), ResultSink(topic=out)

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


def test_what_cannot_be_counted_is_told_and_null_is_not_zero(spark, bootstrap, topics, tmp_path):
    source = topics.create(partitions=2)
    compute = ("count", "values", "sum", "min", "avg", "p50")
    what = definition(source, keys=(GroupKey("k", "$.k"),), time="$.at", value="$.n", compute=compute)
    good = [{"at": T0, "n": n, "k": k} for k in ("a", None) for n in (3, "4.5", None)] + [{"at": T0, "k": "b"}]
    odd = {
        "not_json": ["{", ""],
        "no_time": ['"text"', "[1]", "null"]
        + [json.dumps({"at": at, "n": 1}) for at in ("yesterday", None, True, "12:30", 1e20, "2013-02-30", {})]
        + [json.dumps({"at": at, "n": 1}) for at in (-1, "1969-12-31T23:59:59.999Z", -24 * HOUR, "1960-01-01")],
        "not_a_number": [
            json.dumps({"at": T0, "n": n})
            for n in ("many", True, [1], {"a": 1}, "NaN", "-Infinity", "5d", "30f", "0x1p3")
        ]
        + [f'{{"at": {T0}, "n": 1e999}}'],
        "ahead": [json.dumps({"at": iso(T0).replace("2013", "2999"), "n": 1})],
    }
    values = [*map(json.dumps, good), *(row for rows in odd.values() for row in rows)]
    topics.fill(source, [{"value": row} for row in values] + [{"key": "a record without a value"}])
    summary = run(spark, bootstrap, what, ResultSink(directory=str(tmp_path / "out")))
    assert summary.problems == {"empty": 1, **{name: len(rows) for name, rows in odd.items()}}
    assert (summary.records, summary.batches, summary.late) == (len(values) + 1, 1, 0)
    rows = spark.read.parquet(str(tmp_path / "out")).select("k", *compute).collect()
    assert {tuple(row) for row in rows} == {
        ("a", 3, 2, 7.5, 3.0, 3.75, 3.75), (None, 3, 2, 7.5, 3.0, 3.75, 3.75), ("b", 1, 0, None, None, None, None),
    }  # fmt: skip


def test_records_that_come_too_late_are_counted_in_each_batch(spark, bootstrap, topics, tmp_path):
    source, out = topics.create(), topics.create()
    short = {"window_ms": 10 * MINUTE, "slide_ms": 10 * MINUTE, "watermark_ms": 30 * MINUTE}
    # In order but for every fifth, which is up to four hours old.
    events = [at - (i % 5 == 0) * (i * 7919 % 240) * MINUTE for i, at in enumerate(range(T0, T0 + 6 * HOUR, MINUTE))]
    topics.fill(source, ({"value": b"x", "timestamp": at} for at in events))
    seen = []
    aggregation = AggregateQuery(
        spark, bootstrap, definition(source, **short), ResultSink(topic=out), str(tmp_path / "state")
    )
    summary = aggregation.run(RunOptions(most_records=72), seen.append, threading.Event())
    assert [batch.records for batch in seen if batch.records] == [72] * 5
    assert sum(batch.late > 0 for batch in seen) >= 2
    found = {row["window_start"]: row["count"] for row in results(topics, out)}
    assert sum(found.values()) == len(events) - summary.late
    wanted = {
        iso(at): len(n) for (at, _), n in expected([(at, None, 1) for at in events], 10 * MINUTE, 10 * MINUTE).items()
    }
    assert all(count <= wanted[at] for at, count in found.items())


def test_the_weather_by_hour_and_a_batch_that_was_cut_short(spark, bootstrap, topics, tmp_path, monkeypatch):
    rows = sorted(csv.DictReader(weather_lines()), key=lambda row: row["time_hour"])
    half = len(rows) // 2
    source = topics.create(partitions=3)
    what = definition(
        source,
        window_ms=6 * HOUR,
        slide_ms=6 * HOUR,
        keys=(GroupKey("origin", "$.origin"),),
        time="$.time_hour",
        value="$.temp",
        compute=("count", "values", "min", "max", "p50"),
        watermark_ms=24 * HOUR,
    )
    out = str(tmp_path / "out")
    messages = [
        {"key": row["origin"], "value": json.dumps({k: None if v == "NA" else v for k, v in row.items()})}
        for row in rows
    ]
    topics.fill(source, messages[:half])
    run(spark, bootstrap, what, ResultSink(directory=out))
    topics.fill(source, messages[half:])
    put, files = LocalStorage.replace, []

    def full(storage, path, data):
        files.append(path)
        if len(files) > 40:
            raise PipelineError("no space left on device")
        put(storage, path, data)

    with monkeypatch.context() as patch:
        patch.setattr(LocalStorage, "replace", full)
        with pytest.raises(PipelineError, match="no space left on device"):
            run(spark, bootstrap, what, ResultSink(directory=out))
    run(spark, bootstrap, what, ResultSink(directory=out))
    wanted = defaultdict(list)
    for row in rows:
        at = datetime.fromisoformat(row["time_hour"])
        wanted[at.replace(tzinfo=None, hour=at.hour // 6 * 6), row["origin"]].append(row["temp"])
    found = {}
    for row in spark.read.parquet(out).toLocalIterator():
        assert (row.window_start, row.origin) not in found
        found[row.window_start, row.origin] = (row["count"], row["values"], row["min"], row["max"], row.p50)
    numbers = {at: sorted(float(text) for text in texts if text != "NA") for at, texts in wanted.items()}
    assert found == {at: (len(wanted[at]), len(n), n[0], n[-1], statistics.median(n)) for at, n in numbers.items()}


def test_it_goes_on_until_it_is_stopped(spark, bootstrap, topics, tmp_path):
    source, out = topics.create(), unique("counts")
    aggregation = AggregateQuery(spark, bootstrap, definition(source), ResultSink(topic=out), str(tmp_path / "state"))
    assert aggregation.remarks == [f"topic {out} is created, with cleanup.policy=compact"]
    stopping, sizes = threading.Event(), iter((10, 20, 0))
    topics.fill(source, ({"value": b"x", "timestamp": T0} for _ in range(5)))

    def on_batch(batch):
        size = next(sizes) if batch.records else 0
        topics.fill(source, ({"value": b"x", "timestamp": T0} for _ in range(size)))
        if total() == 35:
            stopping.set()

    def total():
        return sum(row["count"] for row in results(topics, out))

    assert aggregation.run(RunOptions(once=False, every_ms=100), on_batch, stopping).records == 35
    again = AggregateQuery(spark, bootstrap, definition(source), ResultSink(topic=out), str(tmp_path / "state"))
    assert again.remarks == []


def test_records_that_were_removed_before_they_were_read_are_told(spark, bootstrap, topics, tmp_path):
    source = topics.create()
    what, target = definition(source), ResultSink(directory=str(tmp_path / "out"))
    topics.fill(source, ({"value": b"x", "timestamp": T0} for _ in range(10)))
    run(spark, bootstrap, what, target)
    topics.fill(source, ({"value": b"x", "timestamp": T0} for _ in range(10)))
    topics.delete_before(source, 0, 15)
    with pytest.raises(PipelineError, match="records were removed from the topic before they were read"):
        run(spark, bootstrap, what, target)
    assert run(spark, bootstrap, what, target, accept_loss=True).records == 5
    assert [row["count"] for row in spark.read.parquet(str(tmp_path / "out")).collect()] == [15]


def test_what_does_not_fit_is_refused_in_one_sentence(spark, bootstrap, topics, tmp_path):
    source = topics.create()
    out = ResultSink(directory=str(tmp_path / "out"))
    AggregateQuery(spark, bootstrap, definition(source), out)

    def refused(what, target, refusal, checkpoint=""):
        with pytest.raises(PipelineError, match=refusal):
            AggregateQuery(spark, bootstrap, what, target, checkpoint)

    refused(definition("absent"), out, "topic absent does not exist")
    refused(definition(source), ResultSink(topic=source), "cannot be aggregated into itself", str(tmp_path / "state"))
    refused(definition(source), ResultSink(), "results go to a topic or to a directory")
    refused(definition(source), ResultSink(topic="other"), "needs a checkpoint")
    refused(definition(source, slide_ms=MINUTE), out, "of another aggregate .slide_ms 60000, before 3600000")
    refused(definition(source), out, "goes on from another checkpoint", str(tmp_path / "state"))
    refused(
        definition(source),
        ResultSink(directory=str(tmp_path)),
        "holds something else than results",
        str(tmp_path / "s"),
    )
    for words in (["delete", source], ["create", source]):
        assert main(["topics", *words, "--bootstrap", bootstrap]) == 0
    refused(definition(source), out, "was deleted and created again since")


def test_the_command_writes_results_and_a_picture(spark, bootstrap, topics, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    source = topics.create()
    topics.fill(source, ({"key": "ab"[i % 2], "value": json.dumps({"n": i}), "timestamp": T0 + i} for i in range(9)))
    topics.fill(source, [{"value": "{", "timestamp": T0}])
    words = [
        "pipeline",
        "aggregate",
        source,
        "--window",
        "1h",
        "--key",
        "key",
        "--value",
        "$.n",
        "--compute",
        "count,p50",
    ]
    words += ["--approximate", "--to-parquet", "out", "--once", "--plot", "out.png", "--bootstrap", bootstrap]
    assert main(words) == 0
    told = capsys.readouterr()
    assert told.out == f"10 records of {source} in 1 batch: 2 rows of out changed; left out 1 record not JSON\n"
    assert told.err == "batch 0: left out 1 record not JSON\nplot: out.png\n"
    assert {
        tuple(row) for row in spark.read.parquet(str(tmp_path / "out")).select("key", "count", "p50").collect()
    } == {
        ("a", 5, 4.0),
        ("b", 4, 3.0),
    }
    assert Path("out.png").read_bytes().startswith(b"\x89PNG")
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["records"] == 0


@pytest.mark.parametrize(
    ("words", "refusal"),
    [
        ("--to-topic a --to-parquet b", "say where results go: --to-topic TOPIC or --to-parquet DIR"),
        ("--window 1h", "say where results go: --to-topic TOPIC or --to-parquet DIR"),
        ("--to-topic a", "--to-topic needs --checkpoint DIR, which keeps what a later run goes on from"),
        ("--to-parquet a --window soon", "expected a duration such as 90s, 1h30m or P1DT2H, not 'soon'"),
        ("--to-parquet a --window 0ms", "a window and its slide are 1 ms or longer"),
        (
            "--to-parquet a --slide 2h",
            "the slide is longer than the window: records between two windows would be left out",
        ),
        ("--to-parquet a --compute sum", "sum needs a value to be computed of: say which field of the value it is"),
        ("--to-parquet a --once --every 1s", "--once does what there is now, and --every goes on: one of them"),
        ("--to-parquet a --from 5", "--from is earliest or latest, not '5'"),
        ("--to-parquet a --plot a.jpg", "a.jpg: a plot is a PNG file, so its name has to end in .png"),
        ("--to-parquet a", "topic nowhere does not exist"),
        ("--to-topic nowhere --checkpoint c", "topic nowhere cannot be aggregated into itself"),
    ],
)
def test_wrong_usage_is_one_line_and_needs_no_spark(bootstrap, capsys, monkeypatch, tmp_path, words, refusal):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    arguments = ["pipeline", "aggregate", "nowhere", "--window", "1h", "--bootstrap", bootstrap, *words.split()]
    assert main(arguments) in (1, 2)
    assert capsys.readouterr().err == f"kbroker: {refusal}\n"


def test_the_template_runs_as_it_is(spark, bootstrap, topics, tmp_path, capsys, monkeypatch):
    source, out = topics.create(partitions=2), topics.create(configs={"cleanup.policy": "compact"})
    job = str(tmp_path / "job.py")
    assert main(["pipeline", "template", job]) == 0
    assert main(["pipeline", "template", job]) == 1
    assert capsys.readouterr().err == f"kbroker: {job}: is there already\n"
    monkeypatch.setenv("KBROKER_BOOTSTRAP", bootstrap)
    monkeypatch.setattr(sys, "argv", sys.argv)
    wanted = defaultdict(int)
    for block in range(2):
        sent = [(T0 + i * 7_000 + block * MINUTE, "xyz"[i % 3]) for i in range(40)]
        topics.fill(source, ({"key": key, "value": b"four", "timestamp": at} for at, key in sent))
        assert run_file(job, [source, out, str(tmp_path / "state")], spark) == 0
        assert capsys.readouterr().out == f"40 records of {source} are counted in {out}\n"
        for at, key in sent:
            wanted[iso(at // MINUTE * MINUTE), key] += 1
    found = {(row["start"], row["key"]): (row["records"], row["bytes"]) for row in results(topics, out)}
    assert found == {at: (count, 4 * count) for at, count in wanted.items()}
