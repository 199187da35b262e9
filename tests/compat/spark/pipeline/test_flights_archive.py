"""The flights and the weather of 2013 are archived while they are produced and everything is killed; then they are
verified, read by three programs, compacted, and sent into another broker.
"""

import glob
import json

import duckdb
import pyarrow
import pyarrow.dataset
import pytest

from kbroker.pipeline.archive.archive import Archive
from kbroker.pipeline.archive.compaction.compaction import compact
from kbroker.pipeline.archive.ingest.options import IngestOptions, create_subscription
from kbroker.pipeline.archive.ingest.reporting import Reporter
from kbroker.pipeline.archive.ingest.run import archive_topics
from kbroker.pipeline.archive.ingest.stop import StopEvent
from kbroker.pipeline.archive.verification.scope import VerificationScope
from kbroker.pipeline.archive.verification.verify import verify
from kbroker.pipeline.replay.client.cluster import ClusterClient
from kbroker.pipeline.replay.plan import ReplayRequest
from kbroker.pipeline.replay.preparation import ReplayContext, prepare_replay
from kbroker.pipeline.replay.routing import target_names
from kbroker.pipeline.replay.run import create_plan, execute_plan
from kbroker.pipeline.replay.selection import Selection
from kbroker.pipeline.replay.sending.job import SpeedLimit
from kbroker.pipeline.storage.location import open_storage
from tests.compat.spark.flights import FLIGHTS as FLIGHTS_ROWS
from tests.compat.spark.flights import TOTALS, flight_lines, totals
from tests.compat.spark.flights import WEATHER as WEATHER_ROWS
from tests.compat.spark.helpers import Topics, load
from tests.compat.spark.pipeline.archives import rewritten
from tests.compat.spark.pipeline.processes import Command
from tests.compat.spark.pipeline.year import (
    FLIGHTS,
    PARTITIONS,
    Event,
    Feed,
    as_expected,
    difference,
    expected,
    year,
)
from tests.compat.support import eventually, running_broker

pytestmark = [pytest.mark.spark, pytest.mark.feature("flights, archived")]

LONG_S = 240
# Events a second while everything is killed: a day of 2013 or a little more.
PACE = 1200
ORIGIN = ("kbroker.origin.topic", "kbroker.origin.partition", "kbroker.origin.offset", "kbroker.replay")
DELAYS = """
    SELECT split_part(decode(value), ',', 10) || '-' || split_part(decode(value), ',', 2) AS key,
           count(*), sum(coalesce(try_cast(split_part(decode(value), ',', 9) AS INT), 0))
    FROM {table} WHERE topic = 'flights' GROUP BY ALL
"""


@pytest.fixture(scope="module")
def lines():
    return flight_lines()


@pytest.mark.timeout(900)
def test_a_year_survives_everything_that_is_killed(spark, broker, tmp_path, lines):
    events = year()
    wanted = expected(events)
    sums = totals(lines)
    archive = tmp_path / "archive"
    topics = Topics(broker.bootstrap, "year")
    for name, partitions in PARTITIONS.items():
        topics.create(partitions, name=name)
    with Feed(broker.bootstrap, events, PACE) as feed:
        kills(broker, archive, tmp_path / "archiver")
        assert feed.sent < len(events), "everything was produced before the last kill"
        feed.finish(120)
    archive_the_rest(spark, broker, archive)
    assert not difference(as_expected(spark.read.parquet(str(archive)).toArrow()), wanted)
    assert verified(spark, archive, broker) == []

    outcome = compact(spark, Archive.open(open_storage(str(archive))))
    assert outcome.merged
    assert not outcome.damaged
    assert not difference(as_expected(by_pyarrow(archive)), wanted)
    # These have no idea of the manifest: there must not be another file.
    delays = {key: [flights, late] for key, flights, late in by_duckdb(archive)}
    assert delays == {key: [sum_[0], sum_[2]] for key, sum_ in sums.items()}

    (tmp_path / "other").mkdir()
    with running_broker(tmp_path / "other") as other:
        replayed(spark, archive, other)
        assert not difference(received(other), wanted)
        assert aggregated(spark, other, lines[0]) == sums
    assert damages_found(spark, archive) == []


def kills(broker, archive, directory):
    """Python alone in the midst of a batch; the broker under a batch, whose archiver goes on; all three at once."""
    run = ("archive", "run", archive, *PARTITIONS, "--bootstrap", broker.bootstrap, "--every", "1s")
    archiver = Command(directory, *run)
    try:
        archiver.start()
        eventually(lambda: archiver.running() and staged(archive), "files of the first batch", LONG_S)
        archiver.kill(whole=False)

        archiver.start()
        before = commits(archive)
        eventually(lambda: archiver.running() and commits(archive) > before, "a commit after a kill", LONG_S)
        broker.restart()
        before = commits(archive)
        eventually(lambda: archiver.running() and commits(archive) > before + 1, "commits after the broker's", LONG_S)
        eventually(lambda: archiver.running() and staged(archive), "files of a batch", LONG_S)
        archiver.kill()
        broker.restart()
    finally:
        archiver.kill()


def archive_the_rest(spark, broker, archive):
    """As `archive run --once` does it."""
    options = IngestOptions(broker.bootstrap, create_subscription(PARTITIONS, None), once=True)
    told = []
    reporter = Reporter(progress=lambda line: None, warn=told.append)
    summary = archive_topics(spark, open_storage(str(archive)), options, StopEvent(), reporter)
    assert not told
    return summary


def staged(archive):
    """Whether a batch is being written."""
    return next(glob.iglob(f"{archive}/_staging/**/*.parquet", recursive=True), None) is not None


def commits(archive):
    return len(list(archive.glob("_manifest/*[0-9].json")))


def verified(spark, archive, broker):
    """As `archive verify`: what is different, and that all was compared."""
    report = verify(spark, open_storage(str(archive)), broker.bootstrap)
    assert report.rows == report.records_compared == FLIGHTS_ROWS + WEATHER_ROWS
    return report.differences


def damages_found(spark, archive):
    """A file of each of three days is damaged; gives what is not found, or found where nothing was done."""
    opened = Archive.open(open_storage(str(archive)))
    files = {file.date: file.path for file in opened.state().files.values() if file.topic == FLIGHTS}
    dates = [f"2013-07-{day:02}" for day in range(1, 8)]
    removed, doubled, changed = (files[date] for date in dates[2:5])
    (archive / removed).unlink()
    rewritten(opened, doubled, lambda table: pyarrow.concat_tables([table, table.slice(100, 1)]))
    data = bytearray((archive / changed).read_bytes())
    data[len(data) // 2] ^= 1
    (archive / changed).write_bytes(data)
    report = verify(spark, open_storage(str(archive)), scope=VerificationScope(frozenset([FLIGHTS]), frozenset(dates)))
    return sorted({removed, doubled, changed} ^ {finding.file for finding in report.differences})


def by_pyarrow(archive):
    return pyarrow.dataset.dataset(archive, partitioning="hive").to_table()


def by_duckdb(archive):
    table = f"read_parquet('{archive}/*/*/*.parquet', hive_partitioning=true)"
    return duckdb.connect().sql(DELAYS.format(table=table)).fetchall()


def replayed(spark, archive, broker):
    """As `kbroker replay DIR flights weather`, into topics that are not there."""
    opened = Archive.open(open_storage(str(archive)))
    request = ReplayRequest(Selection(tuple(PARTITIONS)), target_names(PARTITIONS, None, None))
    with ClusterClient(broker.bootstrap) as cluster:
        context = ReplayContext(spark, opened, cluster, broker.bootstrap, print)
        execute_plan(context, create_plan(context, prepare_replay(context, request, {})), SpeedLimit())


def received(broker):
    """The replayed topics as the archive would have them, once the headers that say where a record is from are off:
    they name its own place, since all of an empty topic's records come where they were."""
    events = []
    topics = Topics(broker.bootstrap, "year")
    for name in PARTITIONS:
        for m in topics.read(name):
            headers, origin = m.headers()[: -len(ORIGIN)], m.headers()[-len(ORIGIN) :]
            place = (name.encode(), b"%d" % m.partition(), b"%d" % m.offset())
            assert origin[:3] == list(zip(ORIGIN[:3], place, strict=True))
            assert origin[3][0] == ORIGIN[3]
            events.append(Event(name, m.partition(), m.key(), m.value(), tuple(headers), m.timestamp()[1]))
    return expected(events)


def aggregated(spark, broker, header):
    schema = ", ".join(f"{column} STRING" for column in header.split(","))
    frame = load(spark.read, broker.bootstrap, FLIGHTS)
    flights = frame.selectExpr(f"from_csv(CAST(value AS STRING), '{schema}') AS f").select("f.*")
    return {row.key: json.loads(row.value) for row in spark.sql(TOTALS, flights=flights).collect()}
