"""The data pipeline: archiving topics as `kbroker archive run --once` does, and the cost of verify and compact.

One Spark session with all cores of the machine archives from all servers. Each server is archived once before it is
measured, so that no run has a colder JVM. A run is timed from the start of the query to its last commit.
"""

import os
import shutil
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scripts.benchmark.cases import Case, Measured, Meter, Shared, fresh_topic, per_megabyte, per_record
from scripts.benchmark.clients import produce
from scripts.benchmark.peers import Peer

PARTITIONS = 6
LINGER = ("linger.ms=5", "batch.size=65536")
GB = 1e9
RECORDS, SIZE = 5_000_000, 100
# The cases without a peer; --only selects them by this text.
ALONE = "archive compact, archive verify --offline"


class Spark:
    """A session that is started at first use."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._session: Any = None

    def session(self) -> Any:
        if self._session is None:
            from kbroker.pipeline.spark.session import spark_session

            jars = os.environ.get("KBROKER_SPARK_JARS")
            self._session = self._stack.enter_context(spark_session("kbroker bench", jars=jars, note=_say))
        return self._session

    def close(self) -> None:
        self._session = None
        self._stack.close()


@dataclass
class Archived:
    """The archive of a run."""

    directory: Path
    records: int
    data: int  # bytes of keys and values
    seconds: float


def archive(spark: Any, bootstrap: str, topic: str, directory: Path, most_records: int = 2_000_000) -> Archived:
    """Archive the records that a topic has now."""
    from kbroker.pipeline.ingest.cluster_retry import StopEvent
    from kbroker.pipeline.ingest.options import IngestOptions, Reporter, create_subscription
    from kbroker.pipeline.ingest.run import archive_topics

    options = IngestOptions(bootstrap, create_subscription([topic], None), once=True, max_batch_records=most_records)
    reporter = Reporter(progress=lambda line: None, warn=_say)
    begin = time.perf_counter()
    summary = archive_topics(spark, str(directory), options, StopEvent(), reporter)
    seconds = time.perf_counter() - begin
    return Archived(directory, sum(summary.records.values()), summary.record_bytes, seconds)


class Archiving(Shared):
    """Records and megabytes per second of archiving a topic that is written once per server."""

    def __init__(self, spark: Spark, records: int, size: int) -> None:
        super().__init__()
        self.spark = spark
        self.records = records
        self.size = size
        self.topics: dict[Peer, str] = {}

    def prepare(self, peer: Peer) -> None:
        if peer not in self.topics:
            self.topics[peer] = fresh_topic(peer, PARTITIONS)
            produce(peer, self.topics[peer], self.records, self.size, *LINGER)
            self.run(peer)

    def run(self, peer: Peer) -> tuple[Measured, ...]:
        meter = Meter(peer)
        directory = Path(tempfile.mkdtemp(prefix="kbroker-bench-archive-"))
        try:
            done = archive(self.spark.session(), peer.bootstrap, self.topics[peer], directory)
        finally:
            shutil.rmtree(directory)
        # The topic also has the records of ProducerPerformance's warm-up.
        if done.records < self.records:
            raise SystemExit(f"{peer.name}: {done.records} of {self.records} records were archived")
        return meter.figures(per_record(done.records), done.records / done.seconds, done.data / 1e6 / done.seconds)

    def close(self) -> None:
        self.spark.close()


class Verifying:
    """Seconds per GB of keys and values of `archive verify` with the server of the archive."""

    def __init__(self, archiving: Archiving) -> None:
        self.archiving = archiving
        self.archives: dict[Peer, Archived] = {}

    def prepare(self, peer: Peer) -> None:
        self.archiving.prepare(peer)
        if peer not in self.archives:
            directory = Path(tempfile.mkdtemp(prefix="kbroker-bench-verify-"))
            spark, topic = self.archiving.spark.session(), self.archiving.topics[peer]
            self.archives[peer] = archive(spark, peer.bootstrap, topic, directory)
            self.measure(peer)

    def measure(self, peer: Peer) -> Measured:
        one, meter = self.archives[peer], Meter(peer)
        seconds = verified(one, peer.bootstrap)
        return meter.figure(per_megabyte(one.data / 1e6), seconds / (one.data / GB))

    def close(self) -> None:
        for one in self.archives.values():
            shutil.rmtree(one.directory, ignore_errors=True)
        self.archiving.close()


def verified(one: Archived, bootstrap: str = "") -> float:
    """Return the seconds of `archive verify`, which must find no difference."""
    from kbroker.archive.verification.verify import verify
    from kbroker.pipeline.cluster_admin import cluster_client

    with cluster_client(bootstrap) if bootstrap else nullcontext() as cluster:
        report = verify(str(one.directory), cluster=cluster, bootstrap=bootstrap)
    if report.differences or report.rows != one.records or (bootstrap and report.records_compared != one.records):
        raise SystemExit(f"the verification of {one.directory} found: {report.differences[:3]}")
    return report.seconds


@dataclass
class Alone:
    """A figure without a counterpart, with the size that it was measured on."""

    name: str
    unit: str
    figures: list[float] = field(default_factory=list)
    note: str = ""

    def as_json(self) -> dict[str, object]:
        return {"case": self.name, "unit": self.unit, "figures": self.figures, "of": self.note}

    def row(self) -> str:
        median = statistics.median(self.figures)
        spread = (max(self.figures) - min(self.figures)) / median
        return f"| {self.name} | {median:.2f} ±{spread:.0%} | {self.unit} | {self.note} |"


def alone(archiving: Archiving, peer: Peer, rounds: int) -> list[Alone]:
    """Return the cost of verify (against itself) and compact, for archives of many small files."""
    archiving.prepare(peer)
    spark = archiving.spark.session()
    verifying = Alone("archive verify --offline", "s/GB")
    compacting = Alone("archive compact", "s/GB")
    for number in range(rounds + 1):
        directory = Path(tempfile.mkdtemp(prefix="kbroker-bench-compact-"))
        try:
            most = max(archiving.records // 10, 1)
            made = archive(spark, peer.bootstrap, archiving.topics[peer], directory, most)
            before = stored(directory)
            verified_s = verified(made)
            compacted_s = compacted(directory)
            after = stored(directory)
            verified(made)
        finally:
            shutil.rmtree(directory)
        note = f"{made.data / GB:.2f} GB of keys and values in {before[0]} files of {before[1] / GB:.2f} GB"
        verifying.note, compacting.note = note, f"{note}; then {after[0]} of {after[1] / GB:.2f} GB"
        if number:  # the first one warms up
            verifying.figures.append(verified_s / (made.data / GB))
            compacting.figures.append(compacted_s / (made.data / GB))
    return [verifying, compacting]


def compacted(directory: Path) -> float:
    """Return the seconds of `archive compact`."""
    from kbroker.archive.catalogs import open_archive
    from kbroker.archive.maintenance.compaction import MergeResult, compact_topic
    from kbroker.archive.maintenance.compaction_plan import TARGET_BYTES, plan_merges

    begin, outcome = time.perf_counter(), MergeResult()
    for table in open_archive(str(directory)).tables():
        compact_topic(table, plan_merges(table.files(), TARGET_BYTES), outcome)
    seconds = time.perf_counter() - begin
    if not outcome.merged or outcome.damaged:
        raise SystemExit(f"{directory} was not compacted: {outcome}")
    return seconds


def stored(directory: Path) -> tuple[int, int]:
    """Return the number of data files that the tables have, and their bytes."""
    from kbroker.archive.catalogs import open_archive

    sizes = [file.size for table in open_archive(str(directory)).tables() for file in table.files()]
    return len(sizes), sum(sizes)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


class Pipeline:
    """The cases, and the figures without a peer. They share a Spark session and the topics."""

    def __init__(self) -> None:
        self.archiving = Archiving(Spark(), RECORDS, SIZE)
        self.verifying = Verifying(self.archiving)

    def cases(self) -> list[Case]:
        archiving, verifying = self.archiving, self.verifying
        more, less = "more", "less"
        return [
            Case(f"archive to Parquet, {SIZE} B", "records/s", more, 1.0, archiving.figure(0), archiving.prepare),
            Case(f"archive to Parquet, {SIZE} B, volume", "MB/s", more, 1.0, archiving.figure(1), archiving.prepare),
            Case("archive verify against the broker", "s/GB", less, 1.0, verifying.measure, verifying.prepare),
        ]

    def alone(self, peer: Peer, rounds: int) -> list[Alone]:
        return alone(self.archiving, peer, rounds)

    def close(self) -> None:
        self.verifying.close()
