"""Idempotent producers in which a partition that cannot be written does not delay the others."""

from collections.abc import Iterator

from tests.compat.cluster.work import CONFLUENT, KAFKA_PYTHON
from tests.compat.crash.background_producers import (
    ConfluentProducer,
    KafkaPythonProducer,
    Ledger,
    ProducerThread,
    Record,
)
from tests.compat.crash.checks import check_exactly_once, offsets_of, read_topic

# The records of a partition that may wait for their acknowledgements.
MAX_OUTSTANDING = 200
# Longer than any fault: a record may be late, but it may not fail.
DELIVERY_TIMEOUT_MS = 600_000


class CountingLedger(Ledger):
    """`counts`: the acknowledged records of each partition."""

    def __init__(self, name: str, partitions: int) -> None:
        super().__init__(name, partitions)
        self.counts = [0] * partitions

    def complete(self, record: Record, offset: int | None, error: object) -> None:
        super().complete(record, offset, error)
        if error is None:
            self.counts[record[0]] += 1

    def outstanding_of(self, partition: int) -> int:
        failed = sum(record[0] == partition for record in self.failed)
        return self.sent[partition] - self.counts[partition] - failed


class _Independent(ProducerThread):
    """Sends a record to each partition in turn, except to those with many unacknowledged records."""

    def _run(self) -> None:
        ledger = self.ledger
        assert isinstance(ledger, CountingLedger)
        try:
            while not self._stopping.wait(self.pace_s):
                for partition in range(ledger.partitions):
                    if ledger.outstanding_of(partition) < MAX_OUTSTANDING:
                        self._send(*ledger.next(partition))
                self._poll()
        except BaseException as error:
            self.error = error


class IndependentConfluentProducer(_Independent, ConfluentProducer):
    pass


class IndependentKafkaPythonProducer(_Independent, KafkaPythonProducer):
    pass


class Producers:
    """One producer of each client."""

    def __init__(self, bootstrap: str, topic: str, partitions: int, pace_s: float) -> None:
        self._bootstrap = bootstrap
        self._topic = topic
        self._partitions = partitions
        self.all: list[_Independent] = [
            IndependentConfluentProducer(
                bootstrap, "confluent", topic, partitions, **CONFLUENT, **{"message.timeout.ms": DELIVERY_TIMEOUT_MS}
            ),
            IndependentKafkaPythonProducer(
                bootstrap, "python", topic, partitions, **KAFKA_PYTHON, delivery_timeout_ms=DELIVERY_TIMEOUT_MS
            ),
        ]
        for producer in self.all:
            producer.ledger = CountingLedger(producer.ledger.name, partitions)
            producer.pace_s = pace_s

    def start(self) -> None:
        for producer in self.all:
            producer.start()

    def ledgers(self) -> Iterator[CountingLedger]:
        for producer in self.all:
            assert isinstance(producer.ledger, CountingLedger)
            yield producer.ledger

    def check(self) -> None:
        """Fail if a producer has ended, or if a record has failed."""
        for producer in self.all:
            if producer.error is not None:
                raise producer.error
            assert producer.ledger.failed == {}, f"{producer.ledger.name}: {list(producer.ledger.failed.items())[:3]}"

    def stop(self) -> None:
        """Wait until every record is acknowledged."""
        for producer in self.all:
            producer.stop()
        self.check()
        for ledger in self.ledgers():
            assert ledger.outstanding == 0, f"{ledger.name}: {ledger.outstanding} records without an outcome"

    def check_stored(self) -> list[list[bytes]]:
        """Check that every record is stored once, in the order of sending. Returns the values by partition."""
        stored = read_topic(self._bootstrap, self._topic, self._partitions)
        for ledger in self.ledgers():
            check_exactly_once(ledger, offsets_of(ledger, stored))
        return [[value for _, _, value in part] for part in stored]

    def abandon(self) -> None:
        for producer in self.all:
            producer.abandon()
