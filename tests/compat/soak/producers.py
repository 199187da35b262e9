"""Idempotent producers in which a partition that cannot be written does not delay the others."""

from collections.abc import Iterator

from tests.compat.cluster.work import CONFLUENT, KAFKA_PYTHON
from tests.compat.crash.background_producers import ConfluentProducer, KafkaPythonProducer, Ledger, ProducerThread
from tests.compat.crash.checks import check_exactly_once, offsets_of, read_topic
from tests.compat.crash.stored_epochs import StoredEpoch, stored_epoch

# The records of a partition that may wait for their acknowledgements.
MAX_OUTSTANDING = 200
# Longer than any fault: a record may be late, but it may not fail.
DELIVERY_TIMEOUT_MS = 600_000


class _Independent(ProducerThread):
    """Sends a record to each partition in turn, except to those with many unacknowledged records."""

    def _run(self) -> None:
        ledger = self.ledger
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
        self.repeated = 0
        self.all: list[_Independent] = [
            IndependentConfluentProducer(
                bootstrap, "confluent", topic, partitions, **CONFLUENT, **{"message.timeout.ms": DELIVERY_TIMEOUT_MS}
            ),
            IndependentKafkaPythonProducer(
                bootstrap, "python", topic, partitions, **KAFKA_PYTHON, delivery_timeout_ms=DELIVERY_TIMEOUT_MS
            ),
        ]
        for producer in self.all:
            producer.pace_s = pace_s

    def start(self) -> None:
        for producer in self.all:
            producer.start()

    def ledgers(self) -> Iterator[Ledger]:
        for producer in self.all:
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
        """Check that every record is stored once, in the order of sending. Returns the values by partition.

        `repeated` is then the number of librdkafka's records that are stored again in a higher producer epoch.
        """
        stored = read_topic(self._bootstrap, self._topic, self._partitions)
        for producer in self.all:
            # librdkafka may send records again in a higher epoch (docs/exactly-once.md), others may not.
            epoch_of = self._epoch_of if isinstance(producer, ConfluentProducer) else None
            self.repeated += check_exactly_once(producer.ledger, offsets_of(producer.ledger, stored), epoch_of)
        return [[value for _, _, value in part] for part in stored]

    def _epoch_of(self, partition: int, offset: int) -> StoredEpoch:
        return stored_epoch(self._bootstrap, self._topic, partition, offset)

    def abandon(self) -> None:
        for producer in self.all:
            producer.abandon()
