"""Flights and weather of 2013 are archived while they are produced and all processes are killed.

The archive is then verified, read with three programs, compacted, and replayed to another broker.
"""

import glob
import json

import duckdb
import pyarrow
import pytest

from kbroker.pipeline.archive.archive import Archive
from kbroker.pipeline.archive.compaction import compact
from kbroker.pipeline.archive.ingest.cluster_retry import StopEvent
from kbroker.pipeline.archive.ingest.options import IngestOptions, Reporter, create_subscription
from kbroker.pipeline.archive.ingest.run import archive_topics
from kbroker.pipeline.archive.verification.findings import VerificationScope
from kbroker.pipeline.archive.verification.verify import verify
from kbroker.pipeline.cluster_admin import cluster_client
from kbroker.pipeline.replay.plan import ReplayRequest
from kbroker.pipeline.replay.preparation import ReplayContext, prepare_replay
from kbroker.pipeline.replay.routing import target_names
from kbroker.pipeline.replay.run import create_plan, execute_plan
from kbroker.pipeline.replay.selection import Selection
from kbroker.pipeline.replay.sending import SpeedLimit
from kbroker.pipeline.storage import open_storage
from tests.compat.spark.flights import TOTALS, flight_lines, totals
from tests.compat.spark.helpers import Topics, load
from tests.compat.spark.pipeline.archives import rewrite_file
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
    FROM {table} WHERE topic = 'flights' GROUP BY ALL
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
    assert not find_difference(normalize(spark.read.parquet(str(archive)).toArrow()), expected)
    assert verify_with_broker(spark, archive, broker, len(events)) == []

    result = compact(spark, Archive.open(open_storage(str(archive))))
    assert result.merged
    assert not result.damaged
    assert not find_difference(normalize(by_pyarrow(archive)), expected)
    # DuckDB does not use the manifest: there must not be other files.
    delays = {key: [flights, delay] for key, flights, delay in by_duckdb(archive)}
    assert delays == {key: [values[0], values[2]] for key, values in sums.items()}

    (tmp_path / "other").mkdir()
    with running_broker(tmp_path / "other") as other:
        replay(spark, archive, other)
        assert not find_difference(received(other), expected)
        assert aggregated(spark, other, lines[0]) == sums
    assert find_damages(spark, archive) == []


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
        eventually(lambda: archiver.running() and has_staged_files(archive), "files of the first batch", TIMEOUT_S)
        archiver.kill(with_jvm=False)

        archiver.start()
        before = count_commits(archive)
        eventually(lambda: archiver.running() and count_commits(archive) > before, "a commit after a kill", TIMEOUT_S)
        broker.restart()
        before = count_commits(archive)
        eventually(lambda: archiver.running() and count_commits(archive) > before + 1, "two commits", TIMEOUT_S)
        eventually(lambda: archiver.running() and has_staged_files(archive), "files of a batch", TIMEOUT_S)
        archiver.kill()
        broker.restart()
    finally:
        archiver.kill()


def archive_remaining(spark, broker, archive):
    """Archive what is missing, as `archive run --once`."""
    options = IngestOptions(broker.bootstrap, create_subscription(PARTITIONS, None), once=True)
    warnings = []
    reporter = Reporter(progress=lambda line: None, warn=warnings.append)
    summary = archive_topics(spark, open_storage(str(archive)), options, StopEvent(), reporter)
    assert not warnings
    return summary


def has_staged_files(archive):
    """Return whether a batch is being written."""
    return next(glob.iglob(f"{archive}/_staging/**/*.parquet", recursive=True), None) is not None


def count_commits(archive):
    return len(list(archive.glob("_manifest/*[0-9].json")))


def verify_with_broker(spark, archive, broker, count):
    """Return the differences, and check that all rows were compared."""
    report = verify(spark, open_storage(str(archive)), broker.bootstrap)
    assert report.rows == report.records_compared == count
    return report.differences


def find_damages(spark, archive):
    """Damage one file of each of three dates; return files with a missing or an unexpected finding."""
    opened = Archive.open(open_storage(str(archive)))
    files = {file.date: file.path for file in opened.state().files.values() if file.topic == FLIGHTS}
    dates = [f"2013-12-{day:02}" for day in range(1, 8)]
    removed, doubled, changed = (files[date] for date in dates[2:5])
    (archive / removed).unlink()
    rewrite_file(opened, doubled, lambda table: pyarrow.concat_tables([table, table.slice(100, 1)]))
    data = bytearray((archive / changed).read_bytes())
    data[len(data) // 2] ^= 1
    (archive / changed).write_bytes(data)
    report = verify(spark, open_storage(str(archive)), scope=VerificationScope(frozenset([FLIGHTS]), frozenset(dates)))
    return sorted({removed, doubled, changed} ^ {finding.file for finding in report.differences})


def by_pyarrow(archive):
    import pyarrow.dataset  # here, because it imports pandas

    return pyarrow.dataset.dataset(archive, partitioning="hive").to_table()


def by_duckdb(archive):
    table = f"read_parquet('{archive}/*/*/*.parquet', hive_partitioning=true)"
    return duckdb.connect().sql(DELAYS.format(table=table)).fetchall()


def replay(spark, archive, broker):
    """Replay both topics into new ones, as `kbroker replay DIR flights weather` does."""
    opened = Archive.open(open_storage(str(archive)))
    request = ReplayRequest(Selection(tuple(PARTITIONS)), target_names(PARTITIONS, None, None))
    with cluster_client(broker.bootstrap) as cluster:
        context = ReplayContext(spark, opened, cluster, broker.bootstrap, print)
        execute_plan(context, create_plan(context, prepare_replay(context, request, {})), SpeedLimit())


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
