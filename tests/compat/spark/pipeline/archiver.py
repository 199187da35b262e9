"""An archiver of this process, whose runs are in threads: what it has archived is read without Spark."""

import threading

import pyarrow.parquet as pq

from kbroker.pipeline.archive.archive import Archive
from kbroker.pipeline.archive.ingest.options import IngestOptions, create_subscription
from kbroker.pipeline.archive.ingest.reporting import Reporter
from kbroker.pipeline.archive.ingest.run import archive_topics
from kbroker.pipeline.archive.ingest.stop import StopEvent
from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.storage.location import open_storage
from tests.compat.support import eventually


class Archiver:
    """Runs of one archive in this process, and what is in it, read without Spark."""

    def __init__(self, spark, bootstrap, directory):
        self.spark = spark
        self.bootstrap = bootstrap
        self.directory = directory
        self.warnings = []
        self._running = []

    def once(self, *topics, **options):
        return self._run(topics, {"once": True, **options}, StopEvent())

    def start(self, *topics, **options):
        """A continuous run in a thread; `end` ends it."""
        run = Continuous(lambda stop: self._run(topics, {"interval_s": 0.2, **options}, stop))
        self._running.append(run)
        return run

    def _run(self, topics, options, stop):
        checkpoint = options.pop("checkpoint", None)
        subscription = create_subscription(topics, options.pop("pattern", None))
        options = IngestOptions(self.bootstrap, subscription, **{"broker_wait_s": 60, **options})
        place = None if checkpoint is None else open_storage(str(checkpoint))
        reporter = Reporter(lambda _: None, self.warnings.append)
        return archive_topics(self.spark, open_storage(str(self.directory)), options, stop, reporter, place)

    def state(self):
        return Archive.open(open_storage(str(self.directory))).state()

    def files(self):
        try:
            return self.state().files.values()
        except PipelineError:  # it is not made yet
            return ()

    def rows(self, topic):
        """(partition, offset, value as a number) of every committed row, sorted."""
        found = []
        for file in self.files():
            if file.topic == topic:
                table = pq.ParquetFile(self.directory / file.path).read(["partition", "offset", "value"])
                found += zip(*(column.to_pylist() for column in table.columns), strict=True)
        return sorted((partition, offset, int(value)) for partition, offset, value in found)

    def numbers(self, topic):
        return sorted(number for _, _, number in self.rows(topic))

    def close(self):
        for run in self._running:
            run.stop.set()
            run.stop.set()
            run.thread.join(60)


class Continuous:
    def __init__(self, run):
        self.stop = StopEvent()
        self.error = None
        self.summary = None
        self.thread = threading.Thread(target=self._go, args=(run,))
        self.thread.start()

    def _go(self, run):
        try:
            self.summary = run(self.stop)
        except BaseException as error:
            self.error = error

    def end(self):
        self.stop.set()
        self.thread.join(60)
        assert not self.thread.is_alive()
        assert self.error is None
        return self.summary

    def fails(self, timeout=60):
        self.thread.join(timeout)
        assert not self.thread.is_alive()
        return self.error


def has(archiver, topic, wanted, run=None):
    def enough():
        assert run is None or run.thread.is_alive(), run.error
        return len(archiver.rows(topic)) >= wanted

    eventually(enough, f"{wanted} records of {topic} in the archive", timeout=90)
