"""Producers that write random records to several topics at once, with and without transactions, until they stop."""

import random
import threading
from collections.abc import Sequence

from confluent_kafka import KafkaError, KafkaException, Producer

TIMEOUT_S = 20.0
# librdkafka 2.16 can wait forever for a coordinator that was away, whatever its timeout (its issues 5456 and 5511).
HANG_S = 90.0
DAYS = 3
NEW_YEAR_MS = 1_767_225_600_000


class RandomWriters:
    """Threads with a producer each. What they have written is read from the broker, not recorded here."""

    def __init__(self, bootstrap: str, topics: Sequence[tuple[str, int]], seed: int) -> None:
        self._bootstrap = bootstrap
        self._topics = list(topics)  # with their number of partitions
        self._stop = threading.Event()
        self.committed = self.aborted = self.failed = 0  # transactions
        self.plain = 0  # records without a transaction
        self._threads = [
            threading.Thread(
                target=self._run_transactions, args=(f"writer-{n}", random.Random(f"{seed} {n}")), daemon=True
            )
            for n in range(2)
        ]
        self._threads.append(
            threading.Thread(target=self._run_plain, args=(random.Random(f"{seed} plain"),), daemon=True)
        )

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def add_topic(self, topic: str, partitions: int) -> None:
        """Write to this topic too, or to its new partitions."""
        self._topics.append((topic, partitions))

    def stop(self) -> None:
        """Wait until all threads have ended, except those that hang in librdkafka with an open transaction."""
        self._stop.set()
        for thread in self._threads:
            thread.join(HANG_S)
            if thread.is_alive():
                print("  a writer hangs in librdkafka; its transaction ends with its timeout", flush=True)

    def _run_transactions(self, name: str, rng: random.Random) -> None:
        settings = {"transactional.id": name, "transaction.timeout.ms": 60_000}
        producer = None
        while not self._stop.is_set():
            try:
                if producer is None:
                    producer = self._new_producer(settings)
                    producer.init_transactions(TIMEOUT_S)
                self._run_transaction(producer, rng)
            except KafkaException as error:
                self.failed += 1
                producer = self._recover(producer, error)
            self._stop.wait(rng.random() * 0.2)

    def _run_transaction(self, producer: Producer, rng: random.Random) -> None:
        producer.begin_transaction()
        for _ in range(rng.randint(1, 3)):
            for _ in range(rng.randint(1, 80)):
                self._send(producer, rng)
            producer.flush(TIMEOUT_S)
            self._stop.wait(rng.random() * rng.choice((0.0, 0.3, 2.0)))
        if rng.random() < 0.3:
            producer.abort_transaction(TIMEOUT_S)
            self.aborted += 1
        else:
            producer.commit_transaction(TIMEOUT_S)
            self.committed += 1

    def _recover(self, producer: Producer | None, error: KafkaException) -> Producer | None:
        """Return the producer if it can continue; a new one fences it and aborts its open transaction."""
        if producer is None or not error.args[0].txn_requires_abort():
            return None
        try:
            producer.abort_transaction(TIMEOUT_S)
        except KafkaException:
            return None
        return producer

    def _run_plain(self, rng: random.Random) -> None:
        producer = self._new_producer({"enable.idempotence": True})
        while not self._stop.is_set():
            for _ in range(rng.randint(1, 40)):
                self._send(producer, rng)
                self.plain += 1
            producer.poll(0)
            self._stop.wait(rng.random() * 0.4)
        producer.flush(TIMEOUT_S)

    def _new_producer(self, settings: dict[str, object]) -> Producer:
        common = {"bootstrap.servers": self._bootstrap, "linger.ms": 5, "log_level": 0}
        return Producer({**common, "reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 200, **settings})

    def _send(self, producer: Producer, rng: random.Random) -> None:
        topic, partitions = rng.choice(self._topics)
        key = rng.choice((None, b"", b"key-%d" % rng.randrange(50)))
        value = rng.choice((None, b"", *[rng.randbytes(rng.randrange(1, 300)) for _ in range(4)]))
        headers = [("h", rng.choice((None, b"", b"x"))) for _ in range(rng.choice((0, 0, 1, 3)))]
        timestamp_ms = NEW_YEAR_MS + rng.randrange(DAYS * 86_400_000)
        while True:
            try:
                producer.produce(topic, value, key, rng.randrange(partitions), timestamp=timestamp_ms, headers=headers)
                return
            except BufferError:
                producer.poll(0.1)
            except KafkaException as error:
                # A producer does not know a new partition immediately.
                if error.args[0].code() != KafkaError._UNKNOWN_PARTITION:
                    raise
                producer.poll(0.1)
            if self._stop.is_set():
                return
