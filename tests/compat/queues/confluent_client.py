"""confluent-kafka (librdkafka) in the stories of queues."""

from collections.abc import Sequence
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from tests.compat.queues.clients import REFRESH_MS, Got, Sent, encoded, text
from tests.compat.support import DEADLINE_S


class ConfluentKafka:
    commits = True
    commits_position = True

    def __init__(self, bootstrap: str) -> None:
        self._settings: dict[str, Any] = {"bootstrap.servers": bootstrap}
        settings = {"enable.idempotence": True, "linger.ms": 50, "topic.metadata.refresh.interval.ms": REFRESH_MS}
        self._producer = Producer({**self._settings, **settings})

    def produce(self, topic: str, records: Sequence[Sent]) -> list[int]:
        return _send(self._producer, topic, records)

    def transaction(self, topic: str, records: Sequence[Sent], commit: bool) -> None:
        producer = Producer({**self._settings, "transactional.id": f"{topic}-confluent"})
        producer.init_transactions(DEADLINE_S)
        producer.begin_transaction()
        _send(producer, topic, records)
        if commit:
            producer.commit_transaction(DEADLINE_S)
        else:
            producer.abort_transaction(DEADLINE_S)

    def reader(self, topic: str, group: str, read_committed: bool = False) -> "ConfluentReader":
        return ConfluentReader(self._settings, topic, group, read_committed)

    def close(self) -> None:
        self._producer.flush(DEADLINE_S)


def _send(producer: Producer, topic: str, records: Sequence[Sent]) -> list[int]:
    reports: list[tuple[KafkaError | None, Any]] = []
    for r in records:
        producer.produce(
            topic,
            r.value.encode(),
            r.key_bytes,
            headers=encoded(r),
            timestamp=r.timestamp_ms,
            on_delivery=lambda error, message: reports.append((error, message)),
        )
    assert producer.flush(DEADLINE_S) == 0, "not all records were acknowledged"
    assert [error for error, _ in reports if error] == []
    # The reports are in the order of the records.
    return [message.offset() for _, message in reports]


class ConfluentReader:
    """Its position is that of the client's event at the end of the partition."""

    def __init__(self, settings: dict[str, Any], topic: str, group: str, read_committed: bool) -> None:
        self._consumer = Consumer(
            {
                **settings,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "isolation.level": "read_committed" if read_committed else "read_uncommitted",
                "enable.partition.eof": True,
                "fetch.wait.max.ms": 100,
            }
        )
        self._consumer.subscribe([topic])
        self._topic = topic
        self._position = 0

    def poll(self) -> list[Got]:
        got = []
        for message in self._consumer.consume(100, timeout=0.3):
            error = message.error()
            if error is None:
                _, timestamp_ms = message.timestamp()
                headers = text(message.headers() or [])
                got.append(Got(message.offset(), timestamp_ms, message.value().decode(), headers))
                self._position = message.offset() + 1
            elif error.code() == KafkaError._PARTITION_EOF:
                self._position = message.offset()
            else:
                raise KafkaException(error)
        return got

    def position(self) -> int:
        return self._position

    def seek(self, offset: int) -> None:
        self._position = offset
        self._consumer.seek(TopicPartition(self._topic, 0, offset))

    def seek_to_time(self, timestamp_ms: int) -> None:
        [found] = self._consumer.offsets_for_times([TopicPartition(self._topic, 0, timestamp_ms)], DEADLINE_S)
        self.seek(found.offset)

    def close(self) -> None:
        self._consumer.commit(asynchronous=False)
        self._consumer.close()
