"""kafka-python: reading a number of records, and group members that poll in a thread."""

import threading
from collections.abc import Iterable
from typing import Any

from kafka import KafkaConsumer, TopicPartition
from kafka.errors import KafkaError

from tests.compat.support import DEADLINE_S, eventually
from tests.compat.transactions.programs.transactional_consumer import notice_rebalance


def poll(consumer: KafkaConsumer, timeout_ms: int) -> list[Any]:
    """Poll once and return the records of all partitions, in the order of each partition."""
    records = [record for part in consumer.poll(timeout_ms=timeout_ms).values() for record in part]
    notice_rebalance(consumer)
    return records


def read(consumer: KafkaConsumer, count: int) -> list[Any]:
    """Read exactly the next `count` records. Fails if there are more, or if no more come."""
    records: list[Any] = []

    def enough() -> bool:
        records.extend(poll(consumer, timeout_ms=200))
        return len(records) >= count

    eventually(enough, f"{count} records (got {len(records)})", interval=0, progress=lambda: len(records))
    assert len(records) == count, f"{len(records)} records where {count} were written"
    return records


def partitions(topic: str, count: int) -> list[TopicPartition]:
    return [TopicPartition(topic, index) for index in range(count)]


class Member:
    """A group member: a thread polls, rejoins and commits until it leaves, or until a poll raises `error`.

    `continues_after`: errors after which it polls again.
    """

    def __init__(self, consumer: KafkaConsumer, continues_after: tuple[type[KafkaError], ...] = ()) -> None:
        self.consumer = consumer
        self._continues_after = continues_after
        self.assignment: set[TopicPartition] = set()
        self.generation = -1
        self.records: list[Any] = []
        self.error: BaseException | None = None
        self._leaving = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def leave(self) -> None:
        """Close the consumer, which commits and leaves the group. May be called twice."""
        self._leaving.set()
        self._thread.join(DEADLINE_S)
        assert not self._thread.is_alive(), "the consumer did not close"

    def _run(self) -> None:
        try:
            # Without metadata kafka-python joins, is assigned nothing, and can ignore the metadata that it then
            # receives while it joins again.
            for topic in self.consumer.subscription() or ():
                self.consumer.partitions_for_topic(topic)
            while not self._leaving.is_set():
                try:
                    self.records.extend(poll(self.consumer, timeout_ms=350))
                except self._continues_after:
                    continue
                self.assignment = set(self.consumer.assignment())
                self.generation = self.consumer.group_metadata().generation_id
        except BaseException as error:
            self.error = error
        finally:
            self.consumer.close()


def shared(members: Iterable[Member], everything: set[TopicPartition]) -> bool:
    """Return whether each member has partitions and each partition has one member, in one generation."""
    members = list(members)
    for member in members:
        if member.error:
            raise member.error
    shares = [member.assignment for member in members]
    if not all(shares) or len({member.generation for member in members}) != 1:
        return False
    return sum(map(len, shares)) == len(everything) and set().union(*shares) == everything
