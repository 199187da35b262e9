"""Consumer groups that read a topic while faults happen: no record is skipped, and an offset has one value."""

import threading
from collections.abc import Callable, Iterator, Mapping

from confluent_kafka import Consumer, KafkaException, TopicPartition
from kafka import KafkaConsumer
from kafka.errors import KafkaError as KafkaPythonError

from tests.compat.kafka_python.helpers import poll as poll_consumer
from tests.compat.support import DEADLINE_S, eventually, unique

SESSION_TIMEOUT_MS = 6000
# partition, offset, value
Polled = Iterator[tuple[int, int, bytes]]


class Group:
    """What all members of a group have read: `values[partition][offset]` is a record's value."""

    def __init__(self, name: str, partitions: int) -> None:
        self.name = unique(name)
        self.client = name
        self.values: list[dict[int, bytes]] = [{} for _ in range(partitions)]
        self.repeated = 0
        self._lock = threading.Lock()

    def add(self, partition: int, offset: int, value: bytes) -> None:
        with self._lock:
            values = self.values[partition]
            known = values.get(offset)
            if known is None:
                # Members begin where the group has committed, which is not after the last record that it has read.
                assert offset == len(values), f"{self.client} has skipped {partition}:{len(values)}-{offset - 1}"
                values[offset] = value
            else:
                assert known == value, f"{partition}:{offset} was {known[:40]!r}, and is {value[:40]!r}"
                self.repeated += 1


class Member:
    """A thread that polls until `leave`. `error`: what has ended it."""

    def __init__(self, group: Group, poll: Callable[[], Polled], close: Callable[[], None]) -> None:
        self.error: BaseException | None = None
        self._group = group
        self._poll = poll
        self._close = close
        self._leaving = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._leaving.is_set():
                for record in self._poll():
                    self._group.add(*record)
        except BaseException as error:
            self.error = error
        finally:
            self._close()

    def leave(self) -> None:
        self._leaving.set()
        self._thread.join(DEADLINE_S)
        assert not self._thread.is_alive(), f"a member of {self._group.name} did not close"


CLASSIC = {"session.timeout.ms": SESSION_TIMEOUT_MS}
CONSUMER = {"group.protocol": "consumer"}


def confluent_member(bootstrap: str, group: Group, topic: str, protocol: Mapping[str, object]) -> Member:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group.name,
            "auto.offset.reset": "earliest",
            "auto.commit.interval.ms": 500,
            "topic.metadata.refresh.interval.ms": 1000,
            "socket.timeout.ms": 6000,
            "reconnect.backoff.max.ms": 500,
            "log_level": 0,
            **protocol,
        }
    )
    consumer.subscribe([topic])

    def poll() -> Polled:
        for message in consumer.consume(500, timeout=0.2):
            if (error := message.error()) is None:
                yield message.partition(), message.offset(), message.value()
            else:
                assert not error.fatal(), error

    return Member(group, poll, consumer.close)


def python_member(bootstrap: str, group: Group, topic: str) -> Member:
    consumer = KafkaConsumer(
        topic,
        bootstrap_servers=bootstrap.split(","),
        group_id=group.name,
        auto_offset_reset="earliest",
        session_timeout_ms=SESSION_TIMEOUT_MS,
        heartbeat_interval_ms=500,
        auto_commit_interval_ms=500,
        metadata_max_age_ms=1000,
        request_timeout_ms=10_000,
        reconnect_backoff_ms=50,
        reconnect_backoff_max_ms=500,
    )

    def poll() -> Polled:
        try:
            polled = poll_consumer(consumer, timeout_ms=350)
        except KafkaPythonError as error:
            if not error.retriable:
                raise
            return
        for record in polled:
            yield record.partition, record.offset, record.value

    return Member(group, poll, consumer.close)


class Readers:
    """Two groups of two members of confluent-kafka, one for each protocol, and one of a member of kafka-python."""

    def __init__(self, bootstrap: str, topic: str, partitions: int) -> None:
        self._bootstrap = bootstrap
        self._topic = topic
        self._partitions = partitions
        names = ("confluent-readers", "consumer-readers", "python-readers")
        self.groups = [Group(name, partitions) for name in names]
        self._members: list[Member] = []
        # By group: the committed offset of each partition, when last looked at.
        self._committed = {group.name: [0] * partitions for group in self.groups}

    def start(self) -> None:
        classic, consumer, python = self.groups
        self._members = [
            *(confluent_member(self._bootstrap, classic, self._topic, CLASSIC) for _ in range(2)),
            *(confluent_member(self._bootstrap, consumer, self._topic, CONSUMER) for _ in range(2)),
            python_member(self._bootstrap, python, self._topic),
        ]

    def check(self) -> None:
        """Fail if a member has ended, or if a committed offset has gone back."""
        for member in self._members:
            if member.error is not None:
                raise member.error
        for group in self.groups:
            before, now = self._committed[group.name], self.committed(group)
            assert all(map(int.__le__, before, now)), f"commits of {group.name} went from {before} to {now}"
            self._committed[group.name] = now

    def committed(self, group: Group) -> list[int]:
        """Return the committed offset of each partition, 0 for none."""
        partitions = [TopicPartition(self._topic, index) for index in range(self._partitions)]
        consumer = Consumer({"bootstrap.servers": self._bootstrap, "group.id": group.name, "log_level": 0})

        def ask() -> list[int]:
            try:
                return [max(tp.offset, 0) for tp in consumer.committed(partitions, timeout=5)]
            except KafkaException:
                return []

        try:
            return eventually(ask, f"the committed offsets of {group.name}")
        finally:
            consumer.close()

    def finish(self, expected: list[list[bytes]]) -> None:
        """Wait until each group has read and committed everything, and compare it with the topic."""
        ends = [len(part) for part in expected]
        for group in self.groups:
            eventually(
                lambda group=group: [len(values) for values in group.values] == ends,
                f"{group.name} has read {ends}",
                progress=lambda group=group: [len(values) for values in group.values],
            )
            for partition, part in enumerate(expected):
                assert list(group.values[partition].values()) == part, f"what {group.name} has read in {partition}"
            eventually(lambda group=group: self.committed(group) == ends, f"{group.name} has committed {ends}")
        self.check()
        self.leave()

    def leave(self) -> None:
        for member in self._members:
            member.leave()
