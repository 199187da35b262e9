"""Producers that send unique values at full speed from a thread, and record what was acknowledged."""

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
VALUE = re.compile(rb"<([\w-]+) (\d+) (\d+)>")  # name of the producer, partition, number
# Records that may wait in a producer: enough for several batches behind every in-flight request.
MAX_OUTSTANDING = 2_000
KEYS = 7

Record = tuple[int, int]  # partition, number in that partition


class Ledger:
    """What one producer sent: in each partition, values numbered from 0 in the order of sending.

    `counts`: the acknowledged records of each partition.
    """

    def __init__(self, name: str, partitions: int) -> None:
        self.name = name
        self.partitions = partitions
        self.sent = [0] * partitions
        self.counts = [0] * partitions
        self.acknowledged: dict[Record, int | None] = {}  # with the offset, where the response had one
        self.failed: dict[Record, str] = {}

    def next(self, partition: int) -> tuple[Record, bytes, bytes]:
        """Return the next record of a partition, its key and its value."""
        number = self.sent[partition]
        self.sent[partition] = number + 1
        value = b"<%s %d %d>" % (self.name.encode(), partition, number) + PADDING
        return (partition, number), b"key-%d" % (number % KEYS), value

    def grow(self, partitions: int) -> None:
        """Number the values of more partitions. Another thread may call `next` meanwhile."""
        self.sent += [0] * (partitions - self.partitions)
        self.counts += [0] * (partitions - self.partitions)
        self.partitions = partitions

    def complete(self, record: Record, offset: int | None, error: object) -> None:
        if error is not None:
            self.failed[record] = str(error)
        else:
            assert record not in self.acknowledged, f"{record} was acknowledged twice"
            self.acknowledged[record] = offset if offset is not None and offset >= 0 else None
            self.counts[record[0]] += 1

    def outstanding_of(self, partition: int) -> int:
        failed = sum(record[0] == partition for record in self.failed)
        return self.sent[partition] - self.counts[partition] - failed

    @property
    def outstanding(self) -> int:
        return sum(self.sent) - len(self.acknowledged) - len(self.failed)


class BackgroundProducer(Protocol):
    ledger: Ledger
    pace_s: float  # the pause after one record of each partition
    pipelined_requests: int  # that the client is sure to send ahead of their responses

    def start(self) -> None: ...
    def stop(self) -> None:
        """Send no more records, and wait until all are acknowledged or failed."""
        ...

    def grow(self, partitions: int) -> None:
        """Send to more partitions of the topic as soon as the client knows them."""
        ...

    def abandon(self) -> None:
        """End at once, for a test that has failed."""
        ...

    def in_flight(self) -> str:
        """Return the client's own count of what it waits for."""
        ...


class ProducerThread:
    """Sends to the partitions in turn, at most `MAX_OUTSTANDING` records ahead of the acknowledgements."""

    def __init__(self, name: str, topic: str, partitions: int) -> None:
        self.ledger = Ledger(name, partitions)
        self.error: BaseException | None = None
        self.pace_s = 0.0
        self._topic = topic
        self._permits = threading.Semaphore(MAX_OUTSTANDING)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(DEADLINE_S)
        assert not self._thread.is_alive(), "the producer did not stop"
        self._flush()
        if self.error is not None:
            raise self.error

    def grow(self, partitions: int) -> None:
        eventually(lambda: self._known_partitions() == partitions, f"the client knows {partitions} partitions")
        self.ledger.grow(partitions)

    def abandon(self) -> None:
        self._stopping.set()
        self._thread.join(DEADLINE_S)
        self._close()

    def _run(self) -> None:
        count = 0
        try:
            while not self._stopping.is_set():
                if self._permits.acquire(timeout=0.05):
                    self._send(*self.ledger.next(count % self.ledger.partitions))
                    count += 1
                    if self.pace_s and count % self.ledger.partitions == 0:
                        self._stopping.wait(self.pace_s)
                self._poll()
        except BaseException as error:
            self.error = error

    def _complete(self, record: Record, offset: int | None, error: object) -> None:
        self.ledger.complete(record, offset, error)
        self._permits.release()

    def _send(self, record: Record, key: bytes, value: bytes) -> None:
        raise NotImplementedError

    def _known_partitions(self) -> int:
        raise NotImplementedError

    def _poll(self) -> None:
        pass

    def _flush(self) -> None:
        raise NotImplementedError

    def _close(self) -> None:
        raise NotImplementedError


class ConfluentProducer(ProducerThread):
    """librdkafka. An idempotent producer sends no further batch of a partition with five records in flight."""

    pipelined_requests = 3

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
            self._complete(record, message.offset(), error)

        self._producer.produce(self._topic, value, key, partition=record[0], on_delivery=delivered)

    def _known_partitions(self) -> int:
        return len(self._producer.list_topics(self._topic, DEADLINE_S).topics[self._topic].partitions)

    def _poll(self) -> None:
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


class UnbatchedConfluentProducer(ConfluentProducer):
    """librdkafka with one record in a batch: the only way to have five batches of a partition in flight."""

    pipelined_requests = 4

    def __init__(self, bootstrap: str, name: str, topic: str, partitions: int, **settings: Any) -> None:
        super().__init__(bootstrap, name, topic, partitions, **{"batch.num.messages": 1, **settings})


class KafkaPythonProducer(ProducerThread):
    """kafka-python. An idempotent producer has only one batch of a partition in flight."""

    pipelined_requests = 1

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
        future.add_callback(lambda metadata: self._complete(record, metadata.offset, None))
        future.add_errback(lambda error: self._complete(record, None, repr(error)))

    def _known_partitions(self) -> int:
        return len(self._producer.partitions_for(self._topic))

    def _flush(self) -> None:
        self._producer.flush(DEADLINE_S)
        self._producer.close(DEADLINE_S)

    def _close(self) -> None:
        with suppress(KafkaTimeoutError):
            self._producer.close(0)


MakeProducer = Callable[..., BackgroundProducer]
