"""All flights of New York's airports in 2013, produced by a client and read with Structured Streaming."""

import json
from collections import Counter

import pytest

from tests.compat.spark.flights import FLIGHTS, TOTALS, flight_lines, totals
from tests.compat.spark.helpers import finish, load

pytestmark = [pytest.mark.spark, pytest.mark.feature("flights, end to end")]

BATCH_RECORDS = 120_000


@pytest.fixture(scope="module")
def lines():
    """The data set as CSV lines, the header first."""
    return flight_lines()


def test_totals_of_a_stream_equal_those_of_the_data_set(spark, bootstrap, topics, streams, lines):
    source, sink = topics.create(partitions=6), topics.create(partitions=2)
    header, *rows = lines
    carrier = header.split(",").index("carrier")
    records = ({"key": line.split(",")[carrier], "value": line} for line in rows)
    topics.fill(source, records, **{"compression.type": "lz4", "linger.ms": 50})

    schema = ", ".join(f"{column} STRING" for column in header.split(","))
    frame = load(spark.readStream, bootstrap, source, startingOffsets="earliest", maxOffsetsPerTrigger=BATCH_RECORDS)
    flights = frame.selectExpr(f"from_csv(CAST(value AS STRING), '{schema}') AS f").select("f.*")
    out = spark.sql(TOTALS, flights=flights)
    batches = finish(streams.to_topic(out, bootstrap, sink, mode="update", availableNow=True), 120)
    assert sum(batch["numInputRows"] for batch in batches) == FLIGHTS
    assert len(batches) == -(-FLIGHTS // BATCH_RECORDS)

    latest = {m.key().decode(): json.loads(m.value()) for m in topics.read(sink)}
    assert latest == totals(lines)


def test_every_flight_is_delivered_once(spark, bootstrap, topics, streams, lines):
    source = topics.create(partitions=4)
    flights = lines[1:]
    half = len(flights) // 2
    frame = load(spark.readStream, bootstrap, source, startingOffsets="earliest").select("key", "value")
    for part in (flights[:half], flights[half:]):
        topics.fill(source, ({"value": line} for line in part), **{"compression.type": "zstd", "linger.ms": 50})
        finish(streams.to_files(frame, availableNow=True), 120)
    rows = streams.files().selectExpr("CAST(value AS STRING) AS line").toLocalIterator()
    assert Counter(row.line for row in rows) == Counter(flights)
