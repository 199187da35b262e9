"""Apache Kafka's Java client in the stories of queues, in the JVM of Kafka's tools."""

from collections.abc import Sequence
from typing import Any

from tests.compat.kafka_tools.jvm import Jvm
from tests.compat.queues.clients import REFRESH_MS, Got, Sent, encoded, text

SERIALIZER = "org.apache.kafka.common.serialization.ByteArraySerializer"
DESERIALIZER = "org.apache.kafka.common.serialization.ByteArrayDeserializer"


class JavaClient:
    commits = True
    commits_position = True

    def __init__(self, bootstrap: str, jvm: Jvm) -> None:
        self._jvm = jvm
        self._bootstrap = bootstrap
        self._producer = self._new_producer({"linger.ms": 50, "metadata.max.age.ms": REFRESH_MS})

    def _new_producer(self, settings: dict[str, object]) -> Any:
        serializers = {"key.serializer": SERIALIZER, "value.serializer": SERIALIZER}
        values = {"bootstrap.servers": self._bootstrap, **serializers, **settings}
        return self._jvm.java.org.apache.kafka.clients.producer.KafkaProducer(self._jvm.settings(values))

    def produce(self, topic: str, records: Sequence[Sent]) -> list[int]:
        return self._send(self._producer, topic, records)

    def _send(self, producer: Any, topic: str, records: Sequence[Sent]) -> list[int]:
        kafka = self._jvm.java.org.apache.kafka
        futures = []
        for record in records:
            headers = self._jvm.java.java.util.ArrayList()
            for name, value in encoded(record):
                headers.add(kafka.common.header.internals.RecordHeader(name, value))
            timestamp = record.timestamp_ms or None
            value = record.value.encode()
            new = kafka.clients.producer.ProducerRecord(topic, None, timestamp, record.key_bytes, value, headers)
            futures.append(producer.send(new))
        producer.flush()
        return [future.get().offset() for future in futures]

    def transaction(self, topic: str, records: Sequence[Sent], commit: bool) -> None:
        producer = self._new_producer({"transactional.id": f"{topic}-java"})
        producer.initTransactions()
        producer.beginTransaction()
        self._send(producer, topic, records)
        if commit:
            producer.commitTransaction()
        else:
            producer.abortTransaction()
        producer.close()

    def reader(self, topic: str, group: str, read_committed: bool = False) -> "JavaReader":
        settings = {
            "bootstrap.servers": self._bootstrap,
            "key.deserializer": DESERIALIZER,
            "value.deserializer": DESERIALIZER,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": "false",
            "isolation.level": "read_committed" if read_committed else "read_uncommitted",
            "fetch.max.wait.ms": 100,
        }
        return JavaReader(self._jvm, settings, topic)

    def close(self) -> None:
        self._producer.close()


class JavaReader:
    def __init__(self, jvm: Jvm, settings: dict[str, object], topic: str) -> None:
        self._java = jvm.java
        self._consumer = self._java.org.apache.kafka.clients.consumer.KafkaConsumer(jvm.settings(settings))
        self._consumer.subscribe(self._java.java.util.List.of(topic))
        self._partition = self._java.org.apache.kafka.common.TopicPartition(topic, 0)

    def poll(self) -> list[Got]:
        got = []
        records = self._consumer.poll(self._java.java.time.Duration.ofMillis(300)).iterator()
        while records.hasNext():
            record = records.next()
            headers = text([(header.key(), header.value()) for header in record.headers().toArray()])
            got.append(Got(record.offset(), record.timestamp(), record.value().decode(), headers))
        return got

    def position(self) -> int:
        return int(self._consumer.position(self._partition)) if len(self._consumer.assignment()) else 0

    def seek(self, offset: int) -> None:
        self._consumer.seek(self._partition, offset)

    def seek_to_time(self, timestamp_ms: int) -> None:
        times = self._java.java.util.HashMap()
        times.put(self._partition, timestamp_ms)
        self.seek(self._consumer.offsetsForTimes(times).get(self._partition).offset())

    def close(self) -> None:
        self._consumer.commitSync()
        self._consumer.close()
