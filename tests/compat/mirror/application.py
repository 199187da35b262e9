"""A live application: a producer and a group, each in a thread, that are moved from one cluster to another."""

from collections.abc import Iterator
from contextlib import ExitStack
from itertools import count, pairwise

from confluent_kafka import Message, TopicPartition

from tests.compat.mirror.contents import consumer, flush, producer
from tests.compat.support import Sampler, eventually

TOPIC, GROUP = "orders", "billing"
PARTITIONS = 3


class Numbers:
    """The numbers that the producers write, one sequence for each partition, without an end."""

    def __init__(self) -> None:
        self.written = [0] * PARTITIONS
        self._next = [count() for _ in range(PARTITIONS)]

    def next(self, partition: int) -> int:
        self.written[partition] += 1
        return next(self._next[partition])


class Writer(Sampler):
    """Writes numbers while the context is open; all are acknowledged at its end."""

    interval_s = 0.02

    def __init__(self, bootstrap: str, numbers: Numbers) -> None:
        super().__init__()
        self._numbers = numbers
        self._producer = producer(bootstrap, enable_idempotence=True, linger_ms=5)
        self._errors: list[object] = []

    def sample(self) -> None:
        for partition in range(PARTITIONS):
            number = str(self._numbers.next(partition)).encode()
            self._producer.produce(
                TOPIC, number, key=b"key", partition=partition, on_delivery=lambda e, _: e and self._errors.append(e)
            )
        self._producer.poll(0)

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        flush(self._producer)
        assert self._errors == []


class Reader(Sampler):
    """A member of the group that commits what it has processed; `processed` by partition."""

    interval_s = 0.0

    def __init__(self, bootstrap: str) -> None:
        super().__init__()
        self.processed: dict[int, list[int]] = {partition: [] for partition in range(PARTITIONS)}
        self._consumer = consumer(bootstrap, GROUP, session_timeout_ms=6000)
        self._consumer.subscribe([TOPIC])

    def sample(self) -> None:
        messages = [message for message in self._consumer.consume(200, timeout=0.1) if message.error() is None]
        for message in messages:
            self.processed[message.partition()].append(number_of(message))
        if messages:
            self._consumer.commit(offsets=list(_positions(messages)), asynchronous=False)

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        self._consumer.close()

    def has_reached(self, ends: list[int]) -> bool:
        """Return whether it has processed the last number of each partition; `ends`: the number after that."""
        return all(self.processed[p] and self.processed[p][-1] == end - 1 for p, end in enumerate(ends))

    def has_progressed(self) -> bool:
        return all(self.processed.values())


class Application:
    """One writer and one reader, each of which moves by itself from cluster to cluster; `readers`: all of them."""

    def __init__(self) -> None:
        self.numbers = Numbers()
        self.readers: list[Reader] = []
        self._writing = ExitStack()
        self._reading = ExitStack()

    @property
    def reader(self) -> Reader:
        return self.readers[-1]

    def write_to(self, bootstrap: str) -> None:
        self._writing.enter_context(Writer(bootstrap, self.numbers))

    def stop_writing(self) -> None:
        self._writing.close()

    def read_from(self, bootstrap: str) -> None:
        """Start a reader, and wait until it has processed records of all partitions."""
        self.readers.append(self._reading.enter_context(Reader(bootstrap)))
        eventually(self.reader.has_progressed, "processed records")

    def stop_reading(self) -> None:
        self._reading.close()

    def stop(self) -> None:
        self.stop_reading()
        self.stop_writing()

    def wait_until_processed(self) -> None:
        """Wait until the reader has processed everything that was written."""
        eventually(lambda: self.reader.has_reached(self.numbers.written), "the last numbers")

    def check_nothing_skipped(self) -> None:
        """Each reader continues at or before the end of the one before it, and reads every number from there on.

        A reader may begin with numbers that were processed before: translated offsets are rounded down.
        """
        for partition, end in enumerate(self.numbers.written):
            position = 0
            for reader in self.readers:
                numbers = reader.processed[partition]
                assert numbers[0] <= position, f"partition {partition}: {position} to {numbers[0]} were skipped"
                assert all(after <= before + 1 for before, after in pairwise(numbers)), f"a gap in {numbers}"
                position = max(position, numbers[-1] + 1)
            assert position == end


def number_of(message: Message) -> int:
    return int(message.value() or b"-1")


def _positions(messages: list[Message]) -> Iterator[TopicPartition]:
    ends = {message.partition(): message.offset() + 1 for message in messages}
    for partition, offset in ends.items():
        yield TopicPartition(TOPIC, partition, offset)
