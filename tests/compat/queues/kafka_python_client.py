"""kafka-python in the stories of queues."""

from collections.abc import Sequence
from typing import Any

from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from tests.compat.queues.clients import REFRESH_MS, Got, Sent, encoded, text


class KafkaPython:
    commits = True
    commits_position = True

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._producer = KafkaProducer(
            bootstrap_servers=bootstrap, enable_idempotence=True, linger_ms=50, metadata_max_age_ms=REFRESH_MS
        )

    def produce(self, topic: str, records: Sequence[Sent]) -> list[int]:
        futures = _send(self._producer, topic, records)
        return [future.get(60).offset for future in futures]

    def transaction(self, topic: str, records: Sequence[Sent], commit: bool) -> None:
        producer = KafkaProducer(bootstrap_servers=self._bootstrap, transactional_id=f"{topic}-python")
        producer.init_transactions()
        producer.begin_transaction()
        for future in _send(producer, topic, records):
            future.get(60)
        if commit:
            producer.commit_transaction()
        else:
            producer.abort_transaction()
        producer.close()

    def reader(self, topic: str, group: str, read_committed: bool = False) -> "KafkaPythonReader":
        return KafkaPythonReader(self._bootstrap, topic, group, read_committed)

    def close(self) -> None:
        self._producer.close()


def _send(producer: KafkaProducer, topic: str, records: Sequence[Sent]) -> list[Any]:
    futures = [
        producer.send(topic, r.value.encode(), key=r.key_bytes, headers=encoded(r), timestamp_ms=r.timestamp_ms or None)
        for r in records
    ]
    producer.flush()
    return futures


class KafkaPythonReader:
    def __init__(self, bootstrap: str, topic: str, group: str, read_committed: bool) -> None:
        self._consumer = KafkaConsumer(
            topic,
            bootstrap_servers=bootstrap,
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            isolation_level="read_committed" if read_committed else "read_uncommitted",
            fetch_max_wait_ms=100,
        )
        # Otherwise it may join the group without metadata, and be assigned nothing.
        self._consumer.partitions_for_topic(topic)
        self._partition = TopicPartition(topic, 0)

    def poll(self) -> list[Got]:
        # It forgets an assignment that arrives after a short poll.
        timeout_ms = 200 if self._consumer.assignment() else 2000
        polled = self._consumer.poll(timeout_ms=timeout_ms)
        return [Got(r.offset, r.timestamp, r.value.decode(), text(r.headers)) for rows in polled.values() for r in rows]

    def position(self) -> int:
        return self._consumer.position(self._partition) if self._consumer.assignment() else 0

    def seek(self, offset: int) -> None:
        self._consumer.seek(self._partition, offset)

    def seek_to_time(self, timestamp_ms: int) -> None:
        self.seek(self._consumer.offsets_for_times({self._partition: timestamp_ms})[self._partition].offset)

    def close(self) -> None:
        self._consumer.commit()
        self._consumer.close()
