"""Flights and weather of 2013 are archived while they are produced and all processes are killed.

The archive is then verified, read with three programs, compacted, and replayed to another broker.
"""

import json
import sqlite3
from contextlib import closing

import duckdb
import pytest

from kbroker.archive.catalogs import DATABASE, open_archive
from kbroker.pipeline.ingest.cluster_retry import StopEvent
from kbroker.pipeline.ingest.options import IngestOptions, Reporter, create_subscription
from kbroker.pipeline.ingest.run import archive_topics
from tests.compat.spark.flights import TOTALS, flight_lines, totals
from tests.compat.spark.helpers import Topics, load
from tests.compat.spark.pipeline.flight_events import (
    FLIGHTS,
    PART_OF_YEAR,
    PARTITIONS,
    Event,
    EventProducer,
    expected_rows,
    find_difference,
    flight_events,
    normalize,
)
from tests.compat.spark.pipeline.processes import Command, quick_jvm
from tests.compat.support import eventually, running_broker

pytestmark = [pytest.mark.spark, pytest.mark.feature("flights, archived")]

TIMEOUT_S = 240
ORIGIN = ("kbroker.origin.topic", "kbroker.origin.partition", "kbroker.origin.offset", "kbroker.replay")
DELAYS = """
    SELECT split_part(decode(value), ',', 10) || '-' || split_part(decode(value), ',', 2) AS key,
           count(*), sum(coalesce(try_cast(split_part(decode(value), ',', 9) AS INT), 0))
    FROM flights GROUP BY ALL
"""


@pytest.fixture(scope="module")
def lines():
    return flight_lines(*PART_OF_YEAR)


@pytest.mark.timeout(900)
def test_archived_events_survive_kills_of_all_processes(spark, broker, tmp_path, lines):
    events = flight_events()
    expected = expected_rows(events)
    sums = totals(lines)
    archive = tmp_path / "archive"
    topics = Topics(broker.bootstrap, "flights")
    for name, partitions in PARTITIONS.items():
        topics.create(partitions, name=name)
    with EventProducer(broker.bootstrap, events) as producer:
        archive_with_kills(broker, archive, tmp_path / "archiver")
        assert producer.sent < len(events), "everything was produced before the last kill"
        producer.finish(120)
    archive_remaining(spark, broker, archive)
    assert not find_difference(normalize({name: by_spark(spark, archive, name) for name in PARTITIONS}), expected)
    run_command(tmp_path / "verify", "archive", "verify", archive, "--bootstrap", broker.bootstrap)

    run_command(tmp_path / "compact", "archive", "compact", archive)
    assert not find_difference(normalize({name: by_pyiceberg(archive, name) for name in PARTITIONS}), expected)
    delays = {key: [flights, delay] for key, flights, delay in by_duckdb(archive)}
    assert delays == {key: [values[0], values[2]] for key, values in sums.items()}

    (tmp_path / "other").mkdir()
    with running_broker(tmp_path / "other") as other:
        replay = ("replay", archive, *PARTITIONS, "--bootstrap", other.bootstrap, "--conf", quick_jvm())
        run_command(tmp_path / "replay", *replay)
        assert not find_difference(received(other), expected)
        assert aggregated(spark, other, lines[0]) == sums


def archive_with_kills(broker, archive, directory):
    """Kill Python alone during a batch, then the broker while the archiver continues, then all three."""
    run = (
        "archive",
        "run",
        archive,
        *PARTITIONS,
        "--bootstrap",
        broker.bootstrap,
        "--every",
        "1s",
        "--conf",
        quick_jvm(),
    )
    archiver = Command(directory, *run)
    try:
        archiver.start()
        wait_for_files(archiver, archive)
        archiver.kill(with_jvm=False)

        archiver.start()
        before = count_commits(archive)
        eventually(lambda: archiver.running() and count_commits(archive) > before, "a commit after a kill", TIMEOUT_S)
        broker.restart()
        before = count_commits(archive)
        eventually(lambda: archiver.running() and count_commits(archive) > before + 1, "two commits", TIMEOUT_S)
        wait_for_files(archiver, archive)
        archiver.kill()
        broker.restart()
    finally:
        archiver.kill()


def archive_remaining(spark, broker, archive):
    """Archive what is missing, as `archive run --once`."""
    options = IngestOptions(broker.bootstrap, create_subscription(PARTITIONS, None), once=True)
    warnings = []
    archive_topics(spark, str(archive), options, StopEvent(), Reporter(lambda line: None, warnings.append))
    assert not warnings


def run_command(directory, *arguments):
    command = Command(directory, *arguments)
    command.start()
    try:
        assert command.wait(TIMEOUT_S) == 0, f"{command.output[-2000:]}\n{command.errors[-2000:]}"
    finally:
        command.kill()


def uncommitted_files(archive):
    """Return the data files that no table has: those of a batch that is being written, and of killed ones."""
    written = {path.name for path in archive.glob("topics/*/data/**/*.parquet")}
    if not written:
        return written
    tables = open_archive(str(archive)).tables()
    return written - {file.path.rpartition("/")[2] for table in tables for file in table.files()}


def wait_for_files(archiver, archive):
    """Wait until a batch is being written."""
    before = uncommitted_files(archive)
    eventually(lambda: archiver.running() and uncommitted_files(archive) - before, "files of a batch", TIMEOUT_S)


def count_commits(archive):
    if not (archive / DATABASE).exists():
        return 0
    return sum(table.state.commit for table in open_archive(str(archive)).tables())


def by_spark(spark, archive, topic):
    return spark.read.parquet(*(file.path for file in open_archive(str(archive)).table(topic).files())).toArrow()


def by_pyiceberg(archive, topic):
    """Read a table as a program without kbroker does: from the location that the catalogue has."""
    from pyiceberg.table import StaticTable

    with closing(sqlite3.connect(archive / DATABASE)) as connection:
        query = "SELECT metadata_location FROM iceberg_tables WHERE table_namespace = 'topics' AND table_name = ?"
        (location,) = connection.execute(query, [topic]).fetchone()
    return StaticTable.from_metadata(location).scan().to_arrow()


def by_duckdb(archive):
    flights = by_pyiceberg(archive, FLIGHTS)  # DuckDB finds the variable by its name
    return duckdb.connect().register("flights", flights).sql(DELAYS).fetchall()


def received(broker):
    """Return the rows of an archive of the replayed topics, without the headers that replay adds.

    These headers contain the record's own partition and offset, because the target topics were empty.
    """
    events = []
    topics = Topics(broker.bootstrap, "flights")
    for name in PARTITIONS:
        for m in topics.read(name):
            headers, origin = m.headers()[: -len(ORIGIN)], m.headers()[-len(ORIGIN) :]
            position = (name.encode(), b"%d" % m.partition(), b"%d" % m.offset())
            assert origin[:3] == list(zip(ORIGIN[:3], position, strict=True))
            assert origin[3][0] == ORIGIN[3]
            events.append(Event(name, m.partition(), m.key(), m.value(), tuple(headers), m.timestamp()[1]))
    return expected_rows(events)


def aggregated(spark, broker, header):
    schema = ", ".join(f"{column} STRING" for column in header.split(","))
    frame = load(spark.read, broker.bootstrap, FLIGHTS)
    flights = frame.selectExpr(f"from_csv(CAST(value AS STRING), '{schema}') AS f").select("f.*")
    return {row.key: json.loads(row.value) for row in spark.sql(TOTALS, flights=flights).collect()}
