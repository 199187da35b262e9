"""Runs of an archive within the test process, in threads; the archive is read without Spark."""

import threading

import pyarrow.parquet as pq

from kbroker.archive.catalogs import open_archive
from kbroker.archive.errors import ArchiveError
from kbroker.pipeline.ingest.cluster_retry import StopEvent
from kbroker.pipeline.ingest.options import IngestOptions, Reporter, create_subscription
from kbroker.pipeline.ingest.run import archive_topics
from tests.compat.support import DEADLINE_S, eventually


class Archiver:
    """One archive, its runs, and its content."""

    def __init__(self, spark, bootstrap, directory):
        self.spark = spark
        self.bootstrap = bootstrap
        self.directory = directory
        self.warnings = []
        self._runs = []

    def once(self, *topics, **options):
        """Archive what exists now, and return the summary."""
        return self._run(topics, {"once": True, **options}, StopEvent())

    def start(self, *topics, **options):
        """Start a continuous run in a thread."""
        run = ContinuousRun(lambda stop: self._run(topics, {"interval_s": 0.2, **options}, stop))
        self._runs.append(run)
        return run

    def _run(self, topics, options, stop):
        subscription = create_subscription(topics, options.pop("pattern", None))
        options = IngestOptions(self.bootstrap, subscription, **{"broker_wait_s": 60, **options})
        reporter = Reporter(lambda _: None, self.warnings.append)
        return archive_topics(self.spark, str(self.directory), options, stop, reporter)

    def state(self, topic):
        """Return what the table of a topic says."""
        return open_archive(str(self.directory)).table(topic).state

    def covered(self, topic):
        try:
            return self.state(topic).covered
        except ArchiveError:  # it is not created yet
            return {}

    def files(self, topic):
        try:
            return open_archive(str(self.directory)).table(topic).files()
        except ArchiveError:  # it is not created yet
            return []

    def rows(self, topic):
        """Return (partition, offset, value as a number) of every committed row, sorted."""
        rows = []
        for file in self.files(topic):
            table = pq.ParquetFile(file.path.removeprefix("file://")).read(["partition", "offset", "value"])
            rows += zip(*(column.to_pylist() for column in table.columns), strict=True)
        return sorted((partition, offset, int(value)) for partition, offset, value in rows)

    def data_files(self):
        """Return the data files in the directory, also those that no table has."""
        return list(self.directory.rglob("*.parquet"))

    def numbers(self, topic):
        return sorted(number for _, _, number in self.rows(topic))

    def close(self):
        for run in self._runs:
            run.stop.set()
            run.stop.set()
            run.thread.join(DEADLINE_S)


class ContinuousRun:
    """A run in a thread."""

    def __init__(self, run):
        self.stop = StopEvent()
        self.error = None
        self.summary = None
        self.thread = threading.Thread(target=self._run, args=(run,))
        self.thread.start()

    def _run(self, run):
        try:
            self.summary = run(self.stop)
        except BaseException as error:
            self.error = error

    def end(self):
        """Stop the run, and return its summary."""
        self.stop.set()
        self.thread.join(DEADLINE_S)
        assert not self.thread.is_alive()
        assert self.error is None
        return self.summary

    def wait_for_failure(self):
        """Wait until the run ends by itself, and return its error."""
        self.thread.join(DEADLINE_S)
        assert not self.thread.is_alive()
        return self.error


def wait_for_rows(archiver, topic, count, run=None):
    """Wait until the archive has at least `count` rows of a topic, while `run` continues."""

    def has_rows():
        assert run is None or run.thread.is_alive(), run.error
        return len(archiver.rows(topic)) >= count

    eventually(has_rows, f"{count} records of {topic} in the archive")
