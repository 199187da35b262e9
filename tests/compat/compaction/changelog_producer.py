"""Producers that write a changelog while its broker is killed, and record what was acknowledged."""

import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from confluent_kafka import KafkaError, Message, Producer

from tests.compat.compaction.bulk_clients import Record
from tests.compat.compaction.compacted_topic import now_ms
from tests.compat.support import DEADLINE_S, eventually

CODECS = ("none", "lz4", "zstd", "none")
KEYS = [b"", "ключ".encode(), *(b"long " * 1_000 + b"%d" % n for n in range(3)), *(b"key-%d" % n for n in range(2_000))]
# Records of all producers that may be unacknowledged.
MAX_OUTSTANDING = 2_000


class ChangelogProducer:
    """Idempotent producers, one for each of `CODECS`, that write to partition 0 of a topic from a thread.

    Every producer writes every key; a tenth of the records are tombstones. They write `bytes_per_second` on average.
    """

    def __init__(self, bootstrap: str, topic: str, bytes_per_second: int) -> None:
        settings = {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "linger.ms": 2,
            "batch.num.messages": 100,
            "reconnect.backoff.ms": 20,
            "reconnect.backoff.max.ms": 100,
            "retry.backoff.ms": 20,
            "log_level": 2,
        }
        self.failed: list[str] = []
        self._topic = topic
        self._rate = bytes_per_second
        self._producers = [Producer({**settings, "compression.type": codec}) for codec in CODECS]
        self._acknowledged: dict[int, Record] = {}
        self._permits = threading.Semaphore(MAX_OUTSTANDING)
        self._sending = threading.Lock()
        self._stopping = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Send no more records, and wait until all are acknowledged."""
        self._stopping.set()
        self._thread.join(DEADLINE_S)
        assert not self._thread.is_alive(), "the producers did not stop"
        self._flush()

    @contextmanager
    def paused(self) -> Iterator[list[Record]]:
        """Pause the producers, with nothing in flight. Yields all acknowledged records in offset order."""
        with self._sending:
            self._flush()
            yield self.acknowledged()

    def _flush(self) -> None:
        for producer in self._producers:
            eventually(
                lambda producer=producer: producer.flush(1) == 0,
                "every record is acknowledged",
                interval=0,
                progress=lambda producer=producer: len(producer),
            )
        if self._error is not None:
            raise self._error
        assert self.failed == []

    def acknowledged(self) -> list[Record]:
        """Return the records that have been acknowledged, in offset order."""
        return sorted(self._acknowledged.copy().values(), key=lambda record: record.offset)

    def abandon(self) -> None:
        self._stopping.set()
        self._thread.join(DEADLINE_S)
        for producer in self._producers:
            producer.purge()

    def _run(self) -> None:
        """Keep to the rate; after a kill or a pause catch up on at most half a second."""
        chance = random.Random(7)
        due, number = time.monotonic(), 0
        try:
            while not self._stopping.is_set():
                for producer in self._producers:
                    producer.poll(0)
                due = max(due, time.monotonic() - 0.5)
                if due > time.monotonic():
                    self._stopping.wait(due - time.monotonic())
                elif self._permits.acquire(timeout=0.05):
                    value = None if chance.random() < 0.1 else b"%d " % number + bytes(chance.randrange(1_400))
                    with self._sending:
                        record = Record(0, -1, now_ms(), chance.choice(KEYS), value)
                        self._send(chance.choice(self._producers), record)
                    due += (len(record.key or b"") + len(value or b"")) / self._rate
                    number += 1
        except BaseException as error:
            self._error = error

    def _send(self, producer: Producer, record: Record) -> None:
        def delivered(error: KafkaError | None, message: Message) -> None:
            self._permits.release()
            if error is not None:
                self.failed.append(str(error))
            else:
                earlier = self._acknowledged.setdefault(message.offset(), record._replace(offset=message.offset()))
                assert earlier.value == record.value, f"two records were acknowledged at {message.offset()}"

        producer.produce(
            self._topic, record.value, record.key, partition=0, timestamp=record.timestamp, on_delivery=delivered
        )
