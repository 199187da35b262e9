"""confluent-kafka: sending and reading a number of records, and group members."""

from collections.abc import Iterable
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from tests.compat.support import DEADLINE_S, eventually


def send(producer: Producer, topic: str, value: bytes | None, **record: Any) -> Message:
    """Send one record and return the delivered message. Raises KafkaException if it was not delivered."""
    reports: list[tuple[KafkaError | None, Message]] = []
    producer.produce(topic, value, on_delivery=lambda *report: reports.append(report), **record)
    assert producer.flush(DEADLINE_S) == 0, "no delivery report in time"
    [(error, message)] = reports
    if error:
        raise KafkaException(error)
    return message


def send_all(producer: Producer, topic: str, values: Iterable[bytes], **record: Any) -> None:
    """Send many records, all of which must be delivered."""
    errors: list[KafkaError] = []
    for value in values:
        producer.produce(topic, value, on_delivery=lambda e, _: e and errors.append(e), **record)
        producer.poll(0)
    assert producer.flush(DEADLINE_S) == 0, "not everything was delivered in time"
    assert errors == []


def read(consumer: Consumer, count: int) -> list[Message]:
    """Read exactly the next `count` records. Fails if there are more, or if no more come."""
    records: list[Message] = []

    def enough() -> bool:
        for message in consumer.consume(count + 1 - len(records), timeout=0.2):
            if message.error():
                raise KafkaException(message.error())
            records.append(message)
        return len(records) >= count

    eventually(enough, f"{count} records", interval=0, progress=lambda: len(records))
    assert len(records) == count, f"{len(records)} records where {count} were written"
    return records


def from_the_start(consumer: Consumer, topic: str, partitions: int = 1) -> Consumer:
    """Assign every partition from its beginning, without joining a group."""
    consumer.assign([TopicPartition(topic, index, 0) for index in range(partitions)])
    return consumer


def pairs(partitions: Iterable[TopicPartition]) -> set[tuple[str, int]]:
    return {(tp.topic, tp.partition) for tp in partitions}


def everything(topic: str, count: int) -> set[tuple[str, int]]:
    return {(topic, index) for index in range(count)}


class Member:
    """A group member with its records and revoked partitions. `shared` polls it."""

    def __init__(self, consumer: Consumer, topics: list[str]) -> None:
        self.consumer = consumer
        self.records: list[Message] = []
        self.revoked: set[tuple[str, int]] = set()
        self.error: KafkaError | None = None
        consumer.subscribe(topics, on_revoke=lambda _, partitions: self.revoked.update(pairs(partitions)))

    def poll(self) -> None:
        for message in self.consumer.consume(100, timeout=0.05):
            if message.error():
                self.error = message.error()
            else:
                self.records.append(message)

    @property
    def assignment(self) -> set[tuple[str, int]]:
        return pairs(self.consumer.assignment())


def shared(members: list[Member], expected: set[tuple[str, int]]) -> bool:
    """Poll every member; return whether each has partitions and each partition has one member."""
    for member in members:
        member.poll()
    shares = [member.assignment for member in members]
    return all(shares) and sum(map(len, shares)) == len(expected) and set().union(*shares) == expected


def code_of(raised: KafkaException) -> int:
    return raised.args[0].code()
