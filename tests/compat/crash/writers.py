"""Producers that write unique values at speed on a thread of their own, and know what was acknowledged."""

import re
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

from confluent_kafka import KafkaError, Message, Producer
from kafka import KafkaProducer
from kafka.errors import KafkaTimeoutError

from tests.compat.support import DEADLINE_S, eventually

PADDING = b"." * 300
VALUE = re.compile(rb"<([\w-]+) (\d+) (\d+)>")
# Records that may wait in a producer: enough that every in-flight request has several batches behind it.
OUTSTANDING = 2_000
KEYS = 7

Record = tuple[int, int]  # partition, number in that partition


class Ledger:
    """What one producer wrote: in each partition, values numbered from 0 in the order in which they were sent."""

    def __init__(self, name: str, partitions: int) -> None:
        self.name = name
        self.partitions = partitions
        self.sent = [0] * partitions
        self.acknowledged: dict[Record, int | None] = {}  # and at which offset, where the broker said it
        self.refused: dict[Record, str] = {}

    def next(self, partition: int) -> tuple[Record, bytes, bytes]:
        """The next record for a partition, its key and value."""
        number = self.sent[partition]
        self.sent[partition] = number + 1
        value = b"<%s %d %d>" % (self.name.encode(), partition, number) + PADDING
        return (partition, number), b"key-%d" % (number % KEYS), value

    def settle(self, record: Record, offset: int | None, error: object) -> None:
        if error is not None:
            self.refused[record] = str(error)
        else:
            assert record not in self.acknowledged, f"{record} was acknowledged twice"
            self.acknowledged[record] = offset if offset is not None and offset >= 0 else None

    @property
    def outstanding(self) -> int:
        return sum(self.sent) - len(self.acknowledged) - len(self.refused)


class Writer(Protocol):
    """A running producer. `stop` writes no more and waits until everything is settled."""

    ledger: Ledger
    pipeline: int  # requests that the client surely sends ahead of their answers

    def start(self) -> None: ...
    def stop(self) -> None: ...
    def abandon(self) -> None:
        """Ends at once, whatever is unsettled; for a test that has failed."""
        ...

    def in_flight(self) -> str:
        """The client's own word for what it waits for."""
        ...


class _Thread:
    """Sends to the partitions in turn, `OUTSTANDING` records ahead of the acknowledgements at most."""

    def __init__(self, name: str, topic: str, partitions: int) -> None:
        self.ledger = Ledger(name, partitions)
        self.error: BaseException | None = None
        self._topic = topic
        self._room = threading.Semaphore(OUTSTANDING)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._write, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        self._thread.join(DEADLINE_S)
        assert not self._thread.is_alive(), "the producer did not stop"
        self._flush()
        if self.error is not None:
            raise self.error

    def abandon(self) -> None:
        self._ended.set()
        self._thread.join(DEADLINE_S)
        self._close()

    def _write(self) -> None:
        turn = 0
        try:
            while not self._ended.is_set():
                if self._room.acquire(timeout=0.05):
                    self._send(*self.ledger.next(turn % self.ledger.partitions))
                    turn += 1
                self._serve()
        except BaseException as error:
            self.error = error

    def _settle(self, record: Record, offset: int | None, error: object) -> None:
        self.ledger.settle(record, offset, error)
        self._room.release()

    def _send(self, record: Record, key: bytes, value: bytes) -> None:
        raise NotImplementedError

    def _serve(self) -> None:
        pass

    def _flush(self) -> None:
        raise NotImplementedError

    def _close(self) -> None:
        raise NotImplementedError


class ConfluentWriter(_Thread):
    """librdkafka. When idempotent, it sends no batch ahead while five records of a partition are on their way."""

    pipeline = 3

    def __init__(self, bootstrap: str, name: str, topic: str, partitions: int, **settings: Any) -> None:
        super().__init__(name, topic, partitions)
        defaults = {
            "bootstrap.servers": bootstrap,
            "linger.ms": 1,
            "batch.num.messages": 50,
            "reconnect.backoff.ms": 20,
            "reconnect.backoff.max.ms": 200,
            "retry.backoff.ms": 20,
            "log_level": 2,
        }
        self._producer = Producer({**defaults, **settings})

    def in_flight(self) -> str:
        return f"{len(self._producer)} records queued"

    def _send(self, record: Record, key: bytes, value: bytes) -> None:
        def delivered(error: KafkaError | None, message: Message) -> None:
            self._settle(record, message.offset(), error)

        self._producer.produce(self._topic, value, key, partition=record[0], on_delivery=delivered)

    def _serve(self) -> None:
        self._producer.poll(0)

    def _flush(self) -> None:
        eventually(
            lambda: self._producer.flush(1) == 0,
            "every record is delivered",
            interval=0,
            progress=lambda: len(self._producer),
        )

    def _close(self) -> None:
        self._producer.purge()
        self._producer.flush(5)


class UnbatchedWriter(ConfluentWriter):
    """librdkafka with one record in a batch: only so has it up to five batches of a partition on their way."""

    pipeline = 4

    def __init__(self, bootstrap: str, name: str, topic: str, partitions: int, **settings: Any) -> None:
        super().__init__(bootstrap, name, topic, partitions, **{"batch.num.messages": 1, **settings})


class PythonWriter(_Thread):
    """kafka-python, which has but one batch of a partition on its way when it is idempotent."""

    pipeline = 1

    def __init__(self, bootstrap: str, name: str, topic: str, partitions: int, **settings: Any) -> None:
        super().__init__(name, topic, partitions)
        defaults = {
            "bootstrap_servers": bootstrap,
            "linger_ms": 1,
            "reconnect_backoff_ms": 20,
            "reconnect_backoff_max_ms": 200,
            "retry_backoff_ms": 20,
        }
        self._producer = KafkaProducer(**{**defaults, **settings})

    def in_flight(self) -> str:
        return f"{self._producer._sender._client.in_flight_request_count()} requests in flight"

    def _send(self, record: Record, key: bytes, value: bytes) -> None:
        future = self._producer.send(self._topic, value, key, partition=record[0])
        future.add_callback(lambda written: self._settle(record, written.offset, None))
        future.add_errback(lambda error: self._settle(record, None, repr(error)))

    def _flush(self) -> None:
        self._producer.flush(DEADLINE_S)
        self._producer.close(10)

    def _close(self) -> None:
        with suppress(KafkaTimeoutError):
            self._producer.close(0)


MakeWriter = Callable[..., Writer]
