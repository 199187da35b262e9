"""A changelog that is written without a pause while its broker is killed, and what of it is known."""

import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from confluent_kafka import KafkaError, Message, Producer

from tests.compat.compaction.bulk import Record
from tests.compat.compaction.topic import now_ms
from tests.compat.support import DEADLINE_S, eventually

CODECS = ("none", "lz4", "zstd", "none")
KEYS = [b"", "ключ".encode(), *(b"long " * 1_000 + b"%d" % n for n in range(3)), *(b"key-%d" % n for n in range(2_000))]
# Records that may wait for their acknowledgement, of all producers together.
OUTSTANDING = 2_000


class Changelog:
    """Idempotent producers, one for each of `CODECS`, that write to partition 0 of a topic from a thread.

    Of a key now this, now that producer writes; a tenth are tombstones. `bytes_per_second` is kept on average.
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
        self.refused: list[str] = []
        self._topic = topic
        self._rate = bytes_per_second
        self._producers = [Producer({**settings, "compression.type": codec}) for codec in CODECS]
        self._acknowledged: dict[int, Record] = {}
        self._room = threading.Semaphore(OUTSTANDING)
        self._sending = threading.Lock()
        self._ended = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._write, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Writes no more; when this returns, all is acknowledged."""
        self._ended.set()
        self._thread.join(DEADLINE_S)
        assert not self._thread.is_alive(), "the producers did not stop"
        self._settle()

    @contextmanager
    def paused(self) -> Iterator[list[Record]]:
        """Nothing is on its way meanwhile; gives all that has been acknowledged, in the order of the offsets."""
        with self._sending:
            self._settle()
            yield self.acknowledged()

    def _settle(self) -> None:
        for producer in self._producers:
            eventually(
                lambda producer=producer: producer.flush(1) == 0,
                "every record is acknowledged",
                interval=0,
                progress=lambda producer=producer: len(producer),
            )
        if self._error is not None:
            raise self._error
        assert self.refused == []

    def acknowledged(self) -> list[Record]:
        """What has been acknowledged so far, in the order of the offsets."""
        return sorted(self._acknowledged.copy().values(), key=lambda record: record.offset)

    def abandon(self) -> None:
        self._ended.set()
        self._thread.join(DEADLINE_S)
        for producer in self._producers:
            producer.purge()

    def _write(self) -> None:
        """Keeps to the rate; what a kill or a pause has cost is made up for by half a second's worth at most."""
        chance = random.Random(7)
        due, number = time.monotonic(), 0
        try:
            while not self._ended.is_set():
                for producer in self._producers:
                    producer.poll(0)
                due = max(due, time.monotonic() - 0.5)
                if due > time.monotonic():
                    self._ended.wait(due - time.monotonic())
                elif self._room.acquire(timeout=0.05):
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
            self._room.release()
            if error is not None:
                self.refused.append(str(error))
            else:
                known = self._acknowledged.setdefault(message.offset(), record._replace(offset=message.offset()))
                assert known.value == record.value, f"two records were acknowledged at {message.offset()}"

        producer.produce(
            self._topic, record.value, record.key, partition=0, timestamp=record.timestamp, on_delivery=delivered
        )
