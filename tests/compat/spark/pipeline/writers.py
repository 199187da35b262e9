"""Producers that write into several topics at once until they are told to stop: in transactions, and without."""

import random
import threading
from collections.abc import Sequence

from confluent_kafka import KafkaError, KafkaException, Producer

PATIENCE_S = 20.0
# librdkafka 2.16 can wait for ever for a coordinator that was away, whatever its timeout (its issues 5456 and 5511).
HANGS_S = 90.0
DAYS = 3
NEW_YEAR_MS = 1_767_225_600_000


class Writers:
    """Threads, each with a producer and a random generator of its own; what they wrote a consumer has to say."""

    def __init__(self, bootstrap: str, topics: Sequence[tuple[str, int]], seed: int) -> None:
        self._bootstrap = bootstrap
        self._topics = list(topics)
        self._over = threading.Event()
        self.committed = self.aborted = self.failed = self.plain = 0
        jobs = [
            threading.Thread(target=self._transacting, args=(f"writer-{n}", random.Random(f"{seed} {n}")), daemon=True)
            for n in range(2)
        ]
        jobs.append(threading.Thread(target=self._plainly, args=(random.Random(f"{seed} plain"),), daemon=True))
        self._threads = jobs

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def also(self, topic: str, partitions: int) -> None:
        """From here on into this topic too, or into its new partitions."""
        self._topics.append((topic, partitions))

    def stop(self) -> None:
        """All of them have ended: no transaction is open, but one of a thread that librdkafka holds for ever."""
        self._over.set()
        for thread in self._threads:
            thread.join(HANGS_S)
            if thread.is_alive():
                print("  a writer hangs in librdkafka; its transaction ends with its timeout", flush=True)

    def _transacting(self, name: str, dice: random.Random) -> None:
        settings = {"transactional.id": name, "transaction.timeout.ms": 60_000}
        producer = None
        while not self._over.is_set():
            try:
                if producer is None:
                    producer = self._producer(settings)
                    producer.init_transactions(PATIENCE_S)
                self._transaction(producer, dice)
            except KafkaException as error:
                self.failed += 1
                producer = self._after(producer, error)
            self._over.wait(dice.random() * 0.2)

    def _transaction(self, producer: Producer, dice: random.Random) -> None:
        producer.begin_transaction()
        for _ in range(dice.randint(1, 3)):
            for _ in range(dice.randint(1, 80)):
                self._send(producer, dice)
            producer.flush(PATIENCE_S)
            self._over.wait(dice.random() * dice.choice((0.0, 0.3, 2.0)))
        if dice.random() < 0.3:
            producer.abort_transaction(PATIENCE_S)
            self.aborted += 1
        else:
            producer.commit_transaction(PATIENCE_S)
            self.committed += 1

    def _after(self, producer: Producer | None, error: KafkaException) -> Producer | None:
        """The producer to go on with; None for a new one, which fences this one and aborts what it left open."""
        if producer is None or not error.args[0].txn_requires_abort():
            return None
        try:
            producer.abort_transaction(PATIENCE_S)
        except KafkaException:
            return None
        return producer

    def _plainly(self, dice: random.Random) -> None:
        producer = self._producer({"enable.idempotence": True})
        while not self._over.is_set():
            for _ in range(dice.randint(1, 40)):
                self._send(producer, dice)
                self.plain += 1
            producer.poll(0)
            self._over.wait(dice.random() * 0.4)
        producer.flush(PATIENCE_S)

    def _producer(self, more: dict[str, object]) -> Producer:
        common = {"bootstrap.servers": self._bootstrap, "linger.ms": 5, "log_level": 0}
        return Producer({**common, "reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 200, **more})

    def _send(self, producer: Producer, dice: random.Random) -> None:
        topic, partitions = dice.choice(self._topics)
        key = dice.choice((None, b"", b"key-%d" % dice.randrange(50)))
        value = dice.choice((None, b"", *[dice.randbytes(dice.randrange(1, 300)) for _ in range(4)]))
        headers = [("h", dice.choice((None, b"", b"x"))) for _ in range(dice.choice((0, 0, 1, 3)))]
        when = NEW_YEAR_MS + dice.randrange(DAYS * 86_400_000)
        while True:
            try:
                producer.produce(topic, value, key, dice.randrange(partitions), timestamp=when, headers=headers)
                return
            except BufferError:
                producer.poll(0.1)
            except KafkaException as error:
                # A new partition is not known at once.
                if error.args[0].code() != KafkaError._UNKNOWN_PARTITION:
                    raise
                producer.poll(0.1)
            if self._over.is_set():
                return
