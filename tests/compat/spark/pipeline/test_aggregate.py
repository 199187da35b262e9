"""Aggregates compared with plain Python: restarts, late records, invalid records, errors, the command."""

import csv
import io
import json
import statistics
import sys
import threading
from collections import defaultdict
from datetime import UTC, datetime
from pathlib import Path

import fastavro
import pyarrow
import pyarrow.parquet as parquet
import pytest

from kbroker.archive.decoding.settings import Decoding
from kbroker.archive.storage.local import LocalStorage
from kbroker.cli.app import run as main
from kbroker.cli.pipeline.app import run_file
from kbroker.pipeline.aggregate import result_files
from kbroker.pipeline.aggregate.definition import AggregateDefinition, GroupKey
from kbroker.pipeline.aggregate.query import AggregateQuery, ResultSink, RunOptions
from kbroker.pipeline.aggregate.value_decoder import ValueDecoder
from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.security import kafka_options
from tests.compat.spark.flights import weather_lines
from tests.compat.support import unique
from tests.unit.support.schema_registry import running_registry

pytestmark = [pytest.mark.spark, pytest.mark.feature("live aggregates")]

MINUTE, HOUR = 60_000, 3_600_000
T0 = 1_356_998_400_000  # 2013-01-01T00:00:00Z


def definition(topic, **changes):
    values = {"topics": (topic,), "window_ms": HOUR, "slide_ms": HOUR}
    return AggregateDefinition(**values | changes)


def run(spark, bootstrap, aggregate, target, checkpoint="", **options):
    """Run to the end of the topics, and return the summary."""
    query = AggregateQuery(spark, bootstrap, aggregate, target, checkpoint)
    return query.run(RunOptions(**options), lambda batch: None, threading.Event())


def expected(events, window=HOUR, slide=HOUR):
    """Return {(window start in ms, group): ascending numbers} for events (time in ms, group, number)."""
    windows = defaultdict(list)
    for at, group, number in events:
        start = at // slide * slide
        while start > at - window:
            windows[start, group].append(number)
            start -= slide
    return {at: sorted(numbers) for at, numbers in windows.items()}


def iso(ms):
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"


def measurements(count, seed=1):
    """Yield events of ten hours, out of order by up to ten minutes, with numbers that doubles represent exactly."""
    state = seed
    for i in range(count):
        state = state * 1103515245 + 12345 & 0x7FFFFFFF
        yield T0 + i * 10 * HOUR // count + state % (10 * MINUTE), "abc"[state % 3], (state % 4001 - 2000) / 8


def as_json(event, form=lambda ms: ms):
    at, group, number = event
    return {"value": json.dumps({"at": form(at), "user": {"name": group}, "n": number})}


JSON = {
    "keys": (GroupKey("name", "$.user.name"),),
    "time": "$.at",
    "value": "$.n",
    "compute": ("count", "values", "sum", "min", "max", "avg", "p50", "p99.9"),
}


def test_parquet_equals_a_batch_computation_over_restarts(spark, bootstrap, topics, tmp_path):
    source = topics.create(partitions=3)
    aggregate, target = definition(source, **JSON, watermark_ms=12 * HOUR), ResultSink(directory=str(tmp_path / "out"))
    events = list(measurements(2400))
    forms = [iso, lambda ms: ms, lambda ms: ms / 1000, lambda ms: iso(ms).replace("T", " ").removesuffix("Z")]
    records = [as_json(event, forms[i % 4]) for i, event in enumerate(events)]
    # Every fifth record of the first half arrives with the second half: hours late, and within the watermark.
    late = records[:1200:5]
    topics.fill(source, (record for record in records[:1200] if record not in late))
    first = run(spark, bootstrap, aggregate, target)
    topics.fill(source, [*records[1200:], *late])
    second = run(spark, bootstrap, aggregate, target, max_records=800)
    assert second.batches > 1
    for summary, count in ((first, 960), (second, 1440)):
        assert (summary.records, summary.late, sum(summary.problems.values())) == (count, 0, 0)
    rows = spark.read.parquet(str(tmp_path / "out")).collect()
    by_window = {(round(row.window_start.replace(tzinfo=UTC).timestamp() * 1000), row.name): row for row in rows}
    expected_windows = expected(events)
    assert len(rows) == len(by_window)
    assert by_window.keys() == expected_windows.keys()
    for at, numbers in expected_windows.items():
        row = by_window[at]
        assert (row["count"], row["values"], row["min"], row["max"]) == (len(numbers),) * 2 + (numbers[0], numbers[-1])
        assert (row["sum"], row.avg, row.p50) == (sum(numbers), sum(numbers) / len(numbers), statistics.median(numbers))
        assert numbers[-2] <= row.p99_9 <= numbers[-1]
        assert str(row.date) == iso(at[0])[:10]


def test_a_directory_with_glob_characters_keeps_its_own_rows(spark, tmp_path):
    """As a glob pattern, the name matches another directory and not itself."""
    aggregate = definition("t", keys=(GroupKey("key", "key"),), compute=("count",))
    storage = LocalStorage(str(tmp_path / "x[1]{2,3}?*"))
    at, path = datetime.fromtimestamp(T0 / 1000, UTC), result_files.result_path("2013-01-01")

    def merge(**counts):
        rows = [(at, key, count) for key, count in counts.items()]
        changed = spark.createDataFrame(rows, "window_start timestamp, key string, count long")
        result_files.merge_results(storage, aggregate, changed.coalesce(1))

    merge(a=1, b=2)
    other = tmp_path / "x12ab" / path
    other.parent.mkdir(parents=True)
    parquet.write_table(pyarrow.table({"window_start": [at], "key": ["c"], "count": [9]}), other)
    merge(b=3)
    actual = result_files.read_results(spark, storage).select("key", "count").collect()
    assert sorted(map(tuple, actual)) == [("a", 1), ("b", 3)]


def results(topics, name):
    """Return the last value of each key of the result topic."""
    last = {message.key(): json.loads(message.value()) for message in topics.read(name)}
    for key, value in last.items():
        assert value.items() >= json.loads(key).items()
    return list(last.values())


def test_the_last_record_of_a_key_in_a_topic_is_current_and_late_records_are_counted(
    spark, bootstrap, topics, tmp_path
):
    source, out = topics.create(partitions=2), topics.create(partitions=2, configs={"cleanup.policy": "compact"})
    sliding = {"window_ms": 30 * MINUTE, "slide_ms": 10 * MINUTE, "watermark_ms": 20 * MINUTE}
    aggregate, target = definition(source, keys=(GroupKey("key", "key"),), **sliding), ResultSink(topic=out)

    def send(events):
        topics.fill(source, ({"value": b"1234", "key": key, "timestamp": at} for at, key, _ in events))

    def run_again():
        return run(spark, bootstrap, aggregate, target, str(tmp_path / "state"))

    first = [(T0 + minute * MINUTE, key, 8 + bool(key)) for minute in range(120) for key in ("a", None)]
    send(first)
    assert run_again().late == 0
    # The watermark is at 01:39. A record of 01:12 is in the windows from 01:10 (open), 01:00 and 00:50 (closed).
    # All windows of a record of 01:31 are open, and all windows of one of 00:05 are closed.
    inside, partly, outside = ((T0 + minute * MINUTE, "a", 5) for minute in (91, 72, 5))
    send([inside, partly, outside, outside])
    assert run_again().late == 3
    on_time = expected([*first, inside, partly], 30 * MINUTE, 10 * MINUTE)
    closed = {(T0 + minute * MINUTE, "a") for minute in (50, 60)}
    rows = {(row["window_start"], row["key"]): row["count"] for row in results(topics, out)}
    expected_rows = {(iso(at), key): len(n) - ((at, key) in closed) for (at, key), n in on_time.items()}
    assert rows == expected_rows
    sizes = {row["bytes"] / row["count"] for row in results(topics, out)}
    assert sizes == {5.0, 4.0}


def test_invalid_records_are_skipped_and_counted_and_null_is_not_zero(spark, bootstrap, topics, tmp_path):
    source = topics.create(partitions=2)
    compute = ("count", "values", "sum", "min", "avg", "p50")
    aggregate = definition(source, keys=(GroupKey("k", "$.k"),), time="$.at", value="$.n", compute=compute)
    good = [{"at": T0, "n": n, "k": k} for k in ("a", None) for n in (3, "4.5", None)] + [{"at": T0, "k": "b"}]
    invalid = {
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
    values = [*map(json.dumps, good), *(row for rows in invalid.values() for row in rows)]
    topics.fill(source, [{"value": row} for row in values] + [{"key": "a record without a value"}])
    summary = run(spark, bootstrap, aggregate, ResultSink(directory=str(tmp_path / "out")))
    assert summary.problems == {"empty": 1, **{name: len(rows) for name, rows in invalid.items()}}
    assert (summary.records, summary.batches, summary.late) == (len(values) + 1, 1, 0)
    rows = spark.read.parquet(str(tmp_path / "out")).select("k", *compute).collect()
    assert {tuple(row) for row in rows} == {
        ("a", 3, 2, 7.5, 3.0, 3.75, 3.75), (None, 3, 2, 7.5, 3.0, 3.75, 3.75), ("b", 1, 0, None, None, None, None),
    }  # fmt: skip


def test_late_records_are_counted_in_each_batch(spark, bootstrap, topics, tmp_path):
    source, out = topics.create(), topics.create()
    short = {"window_ms": 10 * MINUTE, "slide_ms": 10 * MINUTE, "watermark_ms": 30 * MINUTE}
    # In order, except every fifth event, which is up to four hours old.
    events = [at - (i % 5 == 0) * (i * 7919 % 240) * MINUTE for i, at in enumerate(range(T0, T0 + 6 * HOUR, MINUTE))]
    topics.fill(source, ({"value": b"x", "timestamp": at} for at in events))
    batches = []
    aggregate = definition(source, **short)
    query = AggregateQuery(spark, bootstrap, aggregate, ResultSink(topic=out), str(tmp_path / "state"))
    summary = query.run(RunOptions(max_records=72), batches.append, threading.Event())
    assert [batch.records for batch in batches if batch.records] == [72] * 5
    assert sum(batch.late > 0 for batch in batches) >= 2
    count_by_window = {row["window_start"]: row["count"] for row in results(topics, out)}
    assert sum(count_by_window.values()) == len(events) - summary.late
    expected_rows = {
        iso(at): len(n) for (at, _), n in expected([(at, None, 1) for at in events], 10 * MINUTE, 10 * MINUTE).items()
    }
    assert all(count <= expected_rows[at] for at, count in count_by_window.items())


def test_weather_by_hour_with_an_interrupted_batch(spark, bootstrap, topics, tmp_path, monkeypatch):
    # Two months, whose second half has more result files than are written before the disk is full.
    rows = sorted(csv.DictReader(weather_lines(11)), key=lambda row: row["time_hour"])
    half = len(rows) // 2
    source = topics.create(partitions=3)
    aggregate = definition(
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
    run(spark, bootstrap, aggregate, ResultSink(directory=out))
    topics.fill(source, messages[half:])
    replace, files = LocalStorage.replace, []

    def replace_on_full_disk(storage, path, data):
        files.append(path)
        if len(files) > 20:
            raise PipelineError("no space left on device")
        replace(storage, path, data)

    with monkeypatch.context() as patch:
        patch.setattr(LocalStorage, "replace", replace_on_full_disk)
        with pytest.raises(PipelineError, match="no space left on device"):
            run(spark, bootstrap, aggregate, ResultSink(directory=out))
    run(spark, bootstrap, aggregate, ResultSink(directory=out))
    expected_rows = defaultdict(list)
    for row in rows:
        at = datetime.fromisoformat(row["time_hour"])
        expected_rows[at.replace(tzinfo=None, hour=at.hour // 6 * 6), row["origin"]].append(row["temp"])
    actual = {}
    for row in spark.read.parquet(out).toLocalIterator():
        assert (row.window_start, row.origin) not in actual
        actual[row.window_start, row.origin] = (row["count"], row["values"], row["min"], row["max"], row.p50)
    numbers = {at: sorted(float(text) for text in texts if text != "NA") for at, texts in expected_rows.items()}
    assert actual == {
        at: (len(expected_rows[at]), len(n), n[0], n[-1], statistics.median(n)) for at, n in numbers.items()
    }


def test_a_continuous_run_ends_when_it_is_stopped(spark, bootstrap, topics, tmp_path):
    source, out = topics.create(), unique("counts")
    query = AggregateQuery(spark, bootstrap, definition(source), ResultSink(topic=out), str(tmp_path / "state"))
    assert query.notes == [f"created topic {out} with cleanup.policy=compact"]
    stop, sizes = threading.Event(), iter((10, 20, 0))
    topics.fill(source, ({"value": b"x", "timestamp": T0} for _ in range(5)))

    def on_batch(batch):
        size = next(sizes) if batch.records else 0
        topics.fill(source, ({"value": b"x", "timestamp": T0} for _ in range(size)))
        if total() == 35:
            stop.set()

    def total():
        return sum(row["count"] for row in results(topics, out))

    assert query.run(RunOptions(once=False, interval_ms=100), on_batch, stop).records == 35
    again = AggregateQuery(spark, bootstrap, definition(source), ResultSink(topic=out), str(tmp_path / "state"))
    assert again.notes == []


def test_records_deleted_before_they_were_read_are_an_error(spark, bootstrap, topics, tmp_path):
    source = topics.create()
    aggregate, target = definition(source), ResultSink(directory=str(tmp_path / "out"))
    topics.fill(source, ({"value": b"x", "timestamp": T0} for _ in range(10)))
    run(spark, bootstrap, aggregate, target)
    topics.fill(source, ({"value": b"x", "timestamp": T0} for _ in range(10)))
    topics.delete_before(source, 0, 15)
    with pytest.raises(PipelineError, match="records were deleted from the topic before they were read"):
        run(spark, bootstrap, aggregate, target)
    assert run(spark, bootstrap, aggregate, target, accept_loss=True).records == 5
    assert [row["count"] for row in spark.read.parquet(str(tmp_path / "out")).collect()] == [15]


def test_errors_of_topics_targets_and_checkpoints(spark, bootstrap, topics, tmp_path):
    source = topics.create()
    out = ResultSink(directory=str(tmp_path / "out"))
    AggregateQuery(spark, bootstrap, definition(source), out)

    def assert_error(aggregate, target, message, checkpoint=""):
        with pytest.raises(PipelineError, match=message):
            AggregateQuery(spark, bootstrap, aggregate, target, checkpoint)

    assert_error(definition("absent"), out, "topic absent does not exist")
    assert_error(
        definition(source), ResultSink(topic=source), "cannot be aggregated into itself", str(tmp_path / "state")
    )
    assert_error(definition(source), ResultSink(), "specify either a topic or a directory")
    assert_error(definition(source), ResultSink(topic="other"), "requires a checkpoint")
    assert_error(
        definition(source, slide_ms=MINUTE), out, "belongs to another aggregate .slide_ms 60000, before 3600000"
    )
    assert_error(definition(source), out, "aggregate with another checkpoint", str(tmp_path / "state"))
    assert_error(
        definition(source),
        ResultSink(directory=str(tmp_path)),
        "which is not a result of an aggregate",
        str(tmp_path / "s"),
    )
    for words in (["delete", source], ["create", source]):
        assert main(["topics", *words, "--bootstrap", bootstrap]) == 0
    assert_error(definition(source), out, "was deleted and created again since")


def test_the_command_writes_results_and_a_plot(spark, bootstrap, topics, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    source = topics.create()
    topics.fill(source, ({"key": "ab"[i % 2], "value": json.dumps({"n": i}), "timestamp": T0 + i} for i in range(9)))
    topics.fill(source, [{"value": "{", "timestamp": T0}])
    words = ["pipeline", "aggregate", source, "--window", "1h", "--key", "key", "--value", "$.n"]
    words += [
        "--compute",
        "count,p50",
        "--approximate",
        "--to-parquet",
        "out",
        "--once",
        "--plot",
        "out.png",
        "--bootstrap",
        bootstrap,
    ]
    assert main(words) == 0
    output = capsys.readouterr()
    assert (
        output.out
        == f"10 records of {source} in 1 batch: 2 rows of out changed; skipped 1 record that could not be decoded\n"
    )
    assert output.err == "batch 0: skipped 1 record that could not be decoded\nplotted to out.png\n"
    assert {
        tuple(row) for row in spark.read.parquet(str(tmp_path / "out")).select("key", "count", "p50").collect()
    } == {("a", 5, 4.0), ("b", 4, 3.0)}
    assert Path("out.png").read_bytes().startswith(b"\x89PNG")
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["records"] == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--to-topic a --to-parquet b", "specify either --to-topic TOPIC or --to-parquet DIR"),
        ("--window 1h", "specify either --to-topic TOPIC or --to-parquet DIR"),
        ("--to-topic a", "--to-topic requires --checkpoint DIR"),
        ("--to-parquet a --window soon", "expected a duration such as 90s, 1h30m or P1DT2H, not 'soon'"),
        ("--to-parquet a --window 0ms", "windows and slides must be at least 1 ms"),
        (
            "--to-parquet a --slide 2h",
            "the slide must not be longer than the window: records between two windows would be lost",
        ),
        ("--to-parquet a --compute sum", "sum requires the field of the value to compute it from"),
        ("--to-parquet a --once --every 1s", "specify either --once or --every"),
        ("--to-parquet a --from 5", "--from must be earliest or latest, not '5'"),
        ("--to-parquet a --plot a.jpg", "a.jpg: a plot is a PNG file: its name must end in .png"),
        ("--to-parquet a", "topic nowhere does not exist"),
        ("--to-topic nowhere --checkpoint c", "topic nowhere cannot be aggregated into itself"),
    ],
)
def test_wrong_usage_is_one_line_and_starts_no_spark(bootstrap, capsys, monkeypatch, tmp_path, words, message):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    arguments = ["pipeline", "aggregate", "nowhere", "--window", "1h", "--bootstrap", bootstrap, *words.split()]
    assert main(arguments) in (1, 2)
    assert capsys.readouterr().err == f"kbroker: {message}\n"


def test_the_job_template_runs_unchanged(spark, bootstrap, topics, tmp_path, capsys, monkeypatch):
    source, out = topics.create(partitions=2), topics.create(configs={"cleanup.policy": "compact"})
    job = str(tmp_path / "job.py")
    assert main(["pipeline", "template", job]) == 0
    assert main(["pipeline", "template", job]) == 1
    assert capsys.readouterr().err == f"kbroker: {job} already exists\n"
    monkeypatch.setenv("KBROKER_KAFKA_OPTIONS", json.dumps(kafka_options(bootstrap)))
    monkeypatch.setattr(sys, "argv", sys.argv)
    expected_rows = defaultdict(int)
    for block in range(2):
        sent = [(T0 + i * 7_000 + block * MINUTE, "xyz"[i % 3]) for i in range(40)]
        topics.fill(source, ({"key": key, "value": b"four", "timestamp": at} for at, key in sent))
        assert run_file(job, [source, out, str(tmp_path / "state")], spark) == 0
        assert capsys.readouterr().out == f"counted 40 records of {source} in {out}\n"
        for at, key in sent:
            expected_rows[iso(at // MINUTE * MINUTE), key] += 1
    actual = {(row["start"], row["key"]): (row["records"], row["bytes"]) for row in results(topics, out)}
    assert actual == {at: (count, 4 * count) for at, count in expected_rows.items()}


def test_values_in_avro_with_a_registry(spark, bootstrap, topics, tmp_path):
    """Fields of values of all schemas of the registry; what cannot be decoded is skipped and counted."""
    source = topics.create()
    v1 = {"type": "record", "name": "m", "fields": [{"name": "shop", "type": "string"}, {"name": "n", "type": "int"}]}
    v2 = {
        "type": "record",
        "name": "m",
        "fields": [{"name": "n", "type": "double"}, {"name": "shop", "type": "string"}],
    }

    def encode(number, schema, value):
        stream = io.BytesIO()
        fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), value)
        return b"\0" + number.to_bytes(4, "big") + stream.getvalue()

    with running_registry() as registry:
        first, second = (registry.register(json.dumps(schema)) for schema in (v1, v2))
        values = [
            *(encode(first, v1, {"shop": "a", "n": n}) for n in range(10)),
            *(encode(second, v2, {"shop": "b", "n": n / 4}) for n in range(10)),
            encode(99, v1, {"shop": "a", "n": 1}),
            b"plain",
            None,
        ]
        topics.fill(source, ({"value": value, "timestamp": T0} for value in values))
        aggregate = definition(
            source, keys=(GroupKey("shop", "$.shop"),), value="$.n", compute=("sum",), value_format="avro"
        )
        decoder = ValueDecoder(Decoding("avro", registry.url))
        target = ResultSink(directory=str(tmp_path / "out"))
        summary = AggregateQuery(spark, bootstrap, aggregate, target, decoder=decoder).run(
            RunOptions(), lambda batch: None, threading.Event()
        )
    assert {name: count for name, count in summary.problems.items() if count} == {"not_json": 2, "empty": 1}
    rows = spark.read.parquet(str(tmp_path / "out")).collect()
    assert {row.shop: row["sum"] for row in rows} == {"a": 45.0, "b": 11.25}
