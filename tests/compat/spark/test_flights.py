"""Flights of New York's airports in 2013, produced by a client and read with Structured Streaming."""

import json

import pytest

from tests.compat.spark.flights import TOTALS, flight_lines, totals
from tests.compat.spark.helpers import finish, load

pytestmark = [pytest.mark.spark, pytest.mark.feature("flights, end to end")]

FIRST_MONTH = 11
# A third of the records of these months.
BATCH_RECORDS = 20_000


def test_flights_are_delivered_once_and_their_totals_equal_the_data_set(spark, bootstrap, topics, streams):
    lines = flight_lines(FIRST_MONTH)
    source, sink = topics.create(partitions=6), topics.create(partitions=2)
    header, *flights = lines
    carrier = header.split(",").index("carrier")
    half = len(flights) // 2
    to_files = load(spark.readStream, bootstrap, source, startingOffsets="earliest").select("key", "value")
    for part, codec in ((flights[:half], "lz4"), (flights[half:], "zstd")):
        records = ({"key": line.split(",")[carrier], "value": line} for line in part)
        topics.fill(source, records, **{"compression.type": codec, "linger.ms": 50})
        finish(streams.to_files(to_files, checkpoint="to-files", availableNow=True), 120)
    delivered = streams.files().selectExpr("CAST(value AS STRING) AS line").toArrow()
    assert sorted(delivered.column("line").to_pylist()) == sorted(flights)

    schema = ", ".join(f"{column} STRING" for column in header.split(","))
    frame = load(spark.readStream, bootstrap, source, startingOffsets="earliest", maxOffsetsPerTrigger=BATCH_RECORDS)
    rows = frame.selectExpr(f"from_csv(CAST(value AS STRING), '{schema}') AS f").select("f.*")
    query = streams.to_topic(
        spark.sql(TOTALS, flights=rows), bootstrap, sink, mode="update", checkpoint="to-topic", availableNow=True
    )
    batches = finish(query)
    assert sum(batch["numInputRows"] for batch in batches) == len(flights)
    assert len(batches) == -(-len(flights) // BATCH_RECORDS)
    latest = {m.key().decode(): json.loads(m.value()) for m in topics.read(sink)}
    assert latest == totals(lines)
