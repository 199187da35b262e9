"""Topics that another client fills and reads, Spark's Kafka reader, streaming queries of a test."""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from tests.compat.support import DEADLINE_S, eventually, unique

Record = dict[str, Any]  # arguments of Producer.produce, without the topic


class Topics:
    """Topics of one test, which confluent-kafka fills and reads, so that Spark is not compared with itself."""

    def __init__(self, bootstrap: str, stem: str) -> None:
        self.bootstrap = bootstrap
        self._stem = stem
        self.created: list[str] = []
        self._admin = AdminClient({"bootstrap.servers": bootstrap})

    def create(self, partitions: int = 1, configs: dict[str, str] | None = None, name: str = "") -> str:
        """Create a topic, by default without retention, because the records have old timestamps.

        A view has no other configs.
        """
        name = name or unique(self._stem)
        configs = configs or {}
        if "kbroker.view.of" in configs:
            new = NewTopic(name, config=configs)
        else:
            new = NewTopic(name, partitions, 1, config={"retention.ms": "-1", **configs})
        self._admin.create_topics([new])[name].result(DEADLINE_S)
        self.created.append(name)
        eventually(lambda: self._has(name, partitions), f"{partitions} partitions of {name} in the metadata")
        return name

    def grow(self, name: str, partitions: int) -> None:
        self._admin.create_partitions([NewPartitions(name, partitions)])[name].result(DEADLINE_S)
        eventually(lambda: self._has(name, partitions), f"{partitions} partitions of {name} in the metadata")

    def delete_before(self, name: str, partition: int, offset: int) -> None:
        for deleted in self._admin.delete_records([TopicPartition(name, partition, offset)]).values():
            assert deleted.result(DEADLINE_S).low_watermark == offset

    def delete_all(self, name: str, *partitions: int) -> None:
        """Delete the records of partitions. Those that are closing lose hidden records, too."""
        ends = [TopicPartition(name, partition, -1) for partition in partitions]
        for deleted in self._admin.delete_records(ends).values():
            deleted.result(DEADLINE_S)

    def delete(self) -> None:
        """Delete the topics and close the client: the callback of a query may keep this object after the test."""
        for name, deleted in (self._admin.delete_topics(self.created) if self.created else {}).items():
            assert deleted.exception(20) is None, f"deleting {name}"
        del self._admin

    def fill(self, name: str, records: Iterable[Record], **settings: Any) -> None:
        """Produce the records, and check that all are acknowledged."""
        errors: list[Any] = []
        producer = Producer({"bootstrap.servers": self.bootstrap, "linger.ms": 5, **settings})
        for record in records:
            while True:
                try:
                    producer.produce(name, on_delivery=lambda error, _: error and errors.append(error), **record)
                    break
                except BufferError:
                    producer.poll(0.1)
            producer.poll(0)
        assert producer.flush(DEADLINE_S) == 0, "not all records were acknowledged"
        assert errors == []

    def read(self, name: str) -> list[Message]:
        """Return all records of the topic, sorted by partition and offset."""
        settings = {"bootstrap.servers": self.bootstrap, "group.id": unique("reader"), "fetch.wait.max.ms": 50}
        consumer = Consumer(settings)
        try:
            partitions = consumer.list_topics(name, timeout=DEADLINE_S).topics[name].partitions
            ends = {p: consumer.get_watermark_offsets(TopicPartition(name, p), timeout=DEADLINE_S) for p in partitions}
            consumer.assign([TopicPartition(name, p, low) for p, (low, high) in ends.items() if low < high])
            missing = {p for p, (low, high) in ends.items() if low < high}
            messages: list[Message] = []

            def all_read() -> bool:
                for message in consumer.consume(10_000, timeout=0.2):
                    if message.error():
                        raise KafkaException(message.error())
                    messages.append(message)
                    if message.offset() == ends[message.partition()][1] - 1:
                        missing.discard(message.partition())
                return not missing

            eventually(all_read, f"all records of {name}: {ends}", interval=0)
        finally:
            consumer.close()
        return sorted(messages, key=lambda m: (m.partition(), m.offset()))

    def _has(self, name: str, partitions: int) -> bool:
        metadata = self._admin.list_topics(timeout=DEADLINE_S).topics.get(name)
        if metadata is None or metadata.error or len(metadata.partitions) != partitions:
            return False
        return all(partition.leader >= 0 for partition in metadata.partitions.values())


def numbered(numbers: Iterable[int], partitions: int = 1) -> Iterable[Record]:
    """Yield a record for each number: its value is the number as text, its partition the number modulo `partitions`."""
    return ({"value": str(n).encode(), "partition": n % partitions} for n in numbers)


def load(reader: Any, bootstrap: str, topic: str = "", **options: object) -> Any:
    """Load records from Kafka with `spark.read` or `spark.readStream`. `__` in the name of an option is a dot."""
    reader = reader.format("kafka").option("kafka.bootstrap.servers", bootstrap)
    if topic:
        reader = reader.option("subscribe", topic)
    for name, value in options.items():
        reader = reader.option(name.replace("__", "."), str(value))
    return reader.load()


def numbers(frame: Any) -> list[int]:
    """Return the sorted values of numbered records, including duplicates."""
    return sorted(int(row.n) for row in frame.selectExpr("CAST(value AS STRING) AS n").collect())


class Streams:
    """The streaming queries of a test, with checkpoints in its directory."""

    def __init__(self, spark: Any, directory: Path) -> None:
        self.spark = spark
        self._directory = directory
        self._running: list[Any] = []

    def run(self, writer: Any, checkpoint: str = "checkpoint", **trigger: Any) -> Any:
        """Start a query. `trigger`: availableNow=True, processingTime="1 second", ..."""
        writer = writer.option("checkpointLocation", self.path(checkpoint))
        query = writer.trigger(**(trigger or {"processingTime": "100 milliseconds"})).start()
        self._running.append(query)
        return query

    def to_files(self, frame: Any, **options: Any) -> Any:
        """Start a query that appends to Parquet files, each row exactly once, also after restarts."""
        return self.run(frame.writeStream.format("parquet").option("path", self.path("files")), **options)

    def files(self) -> Any:
        """Return the rows of committed batches in these files."""
        return self.spark.read.schema("key binary, value binary").parquet(self.path("files"))

    def to_memory(self, frame: Any, table: str, mode: str = "append", **options: Any) -> Any:
        """Start a query whose result is `spark.table(table)`: the cheapest sink."""
        return self.run(frame.writeStream.format("memory").queryName(table).outputMode(mode), **options)

    def to_topic(self, frame: Any, bootstrap: str, topic: str = "", mode: str = "append", **options: Any) -> Any:
        """Start a query that produces its rows to Kafka, each at least once."""
        writer = frame.writeStream.format("kafka").option("kafka.bootstrap.servers", bootstrap).outputMode(mode)
        writer = writer.option("includeHeaders", "true")
        return self.run(writer.option("topic", topic) if topic else writer, **options)

    def path(self, name: str) -> str:
        return str(self._directory / name)

    def stop(self) -> None:
        for query in self._running:
            query.stop()


def finish(query: Any, timeout: float = 240) -> list[dict[str, Any]]:
    """Wait until a query has ended by itself, and return the progress of its batches with input."""
    assert query.awaitTermination(timeout), f"the query did not end within {timeout:g} s: {query.status}"
    progress = (json.loads(p.json) for p in query.recentProgress)
    return [p for p in progress if p["numInputRows"]]


def wait_for_numbers(query: Any, frame: Callable[[], Any], expected: list[int], timeout: float = DEADLINE_S) -> None:
    """Wait until a running query has delivered exactly these numbers. Fails immediately if the query fails."""

    def all_delivered() -> list[int]:
        assert query.isActive, f"the query ended: {query.exception()}"
        delivered = numbers(frame())
        return delivered if len(delivered) >= len(expected) else []

    assert eventually(all_delivered, f"{len(expected)} rows of the query", timeout, interval=0.1) == expected


class Writer:
    """A transactional producer of numbered records, by confluent-kafka. It has one transaction at a time."""

    def __init__(self, topics: Topics) -> None:
        self._producer = Producer({"bootstrap.servers": topics.bootstrap, "transactional.id": unique("writer")})
        self._producer.init_transactions(DEADLINE_S)
        self._open = False

    def begin(self, name: str, rows: Iterable[int], partitions: int = 1, pad: str = "") -> None:
        """Begin a transaction and produce its records; it stays open."""
        self._producer.begin_transaction()
        self._open = True
        self.produce(name, rows, partitions, pad)

    def produce(self, name: str, rows: Iterable[int], partitions: int = 1, pad: str = "") -> None:
        """Produce more records in the open transaction. `pad`: leading zeros that make the records longer."""
        errors: list[Any] = []
        for n in rows:
            value = f"{pad}{n}".encode()
            self._producer.produce(
                name, value, partition=n % partitions, on_delivery=lambda error, _: error and errors.append(error)
            )
        assert self._producer.flush(DEADLINE_S) == 0, "not all records were acknowledged"
        assert errors == []

    def end(self, committed: bool) -> None:
        if committed:
            self._producer.commit_transaction(DEADLINE_S)
        else:
            self._producer.abort_transaction(DEADLINE_S)
        self._open = False

    def write(self, name: str, rows: Iterable[int], partitions: int, committed: bool, pad: str = "") -> None:
        """Run one transaction."""
        self.begin(name, rows, partitions, pad)
        self.end(committed)

    def close(self) -> None:
        if self._open:
            self.end(committed=False)
