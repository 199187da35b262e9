"""All kinds of work at the same time: producers, groups, transactions and (optionally) a streaming query."""

from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack
from pathlib import Path

from tests.compat.soak.producers import Producers
from tests.compat.soak.progress import Kind, Progress, Stream
from tests.compat.soak.readers import Readers
from tests.compat.soak.spark_process import SparkProcess
from tests.compat.soak.transformers import Transformers

# Seconds between two rounds of one record for each partition: faults take seconds, so more records prove no more.
PACE_S = 0.15


class Workload:
    """Clients of two libraries. `topic`: what producers write and groups read; it has `partitions` partitions."""

    def __init__(self, bootstrap: str, topic: str, partitions: int, directory: Path, with_spark: bool = False) -> None:
        self.topic = topic
        self.partitions = partitions
        self.producers = Producers(bootstrap, topic, partitions, PACE_S)
        self.readers = Readers(bootstrap, topic, partitions)
        self.transformers = Transformers(bootstrap, directory)
        self.spark = SparkProcess(bootstrap, topic, directory) if with_spark else None
        # What ends the processes that run.
        self._processes = ExitStack()

    @property
    def topics(self) -> list[str]:
        """The topics that are written, whose records are all kept."""
        return [self.topic, *self.transformers.topics]

    def start(self) -> None:
        """Start everything, and wait until all of it works."""
        self._processes.callback(self.transformers.abandon)
        self.producers.start()
        self.readers.start()
        self.transformers.start()
        if self.spark:
            self._processes.callback(self.spark.abandon)
            self.spark.start()
        self.progress = Progress(list(self._streams()))
        self.progress.start()
        self.wait_for_progress("at the start")

    def _streams(self) -> Iterator[Stream]:
        for partition in range(self.partitions):
            for ledger in self.producers.ledgers():
                yield Stream(
                    f"{ledger.name} writes {partition}",
                    Kind.WRITES,
                    partition,
                    lambda ledger=ledger, partition=partition: ledger.counts[partition],
                )
            for group in self.readers.groups:
                yield Stream(
                    f"{group.client} reads {partition}",
                    Kind.READS,
                    partition,
                    lambda group=group, partition=partition: len(group.values[partition]),
                )
        for flow in self.transformers.flows:
            yield Stream(flow.group, Kind.TRANSACTIONS, -1, lambda flow=flow: self.transformers.commits(flow))
        if self.spark:
            yield Stream("Spark", Kind.TRANSACTIONS, -1, self.spark.rows)

    def wait_for_progress(self, description: str, streams: Collection[Stream] | None = None) -> None:
        """Wait until each stream has advanced; all streams if none are named."""
        chosen = self.progress.streams if streams is None else streams
        self.progress.wait_for_all(chosen, description, self.transformers.check)

    def check(self) -> None:
        """Fail if a record has failed, a client has ended, or a committed offset has gone back."""
        self.producers.check()
        self.readers.check()

    def finish(self, restore: Callable[[], None]) -> list[str]:
        """Stop the work, check everything that it has written and read, and return a report.

        `restore` is called when nothing writes any more, and waits until all replicas are in sync.
        """
        self.progress.stop()
        self.producers.stop()
        restore()
        values = self.producers.check_stored()
        self.readers.finish(values)
        flows = self.transformers.finish()
        if self.spark:
            self.spark.finish(values)
        restore()
        repeated = sum(group.repeated for group in self.readers.groups)
        return [
            f"{sum(map(len, values))} records acknowledged and stored once, in order, except for "
            f"{self.producers.repeated} that librdkafka has sent again in a higher producer epoch; read by three "
            f"groups, {repeated} of them more than once",
            *flows,
            *([self.spark.report()] if self.spark else []),
        ]

    def end(self) -> None:
        """End all processes."""
        self._processes.close()
