"""What the Spark tests share: topics seen by another client, Spark's reader, queries that end with the test."""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from tests.compat.support import eventually, unique

Record = dict[str, Any]  # arguments of Producer.produce but for the topic


class Topics:
    """Topics of one test, filled and read by confluent-kafka, so that Spark never checks Spark."""

    def __init__(self, bootstrap: str, stem: str) -> None:
        self.bootstrap = bootstrap
        self._stem = stem
        self._made: list[str] = []
        self._admin = AdminClient({"bootstrap.servers": bootstrap})

    def create(self, partitions: int = 1, configs: dict[str, str] | None = None, name: str = "") -> str:
        """Without retention, since records of these tests are of any year, unless `configs` say otherwise."""
        name = name or unique(self._stem)
        configs = {"retention.ms": "-1", **(configs or {})}
        self._admin.create_topics([NewTopic(name, partitions, 1, config=configs)])[name].result(20)
        self._made.append(name)
        eventually(lambda: self._has(name, partitions), f"{partitions} partitions of {name} in the metadata")
        return name

    def grow(self, name: str, partitions: int) -> None:
        self._admin.create_partitions([NewPartitions(name, partitions)])[name].result(20)
        eventually(lambda: self._has(name, partitions), f"{partitions} partitions of {name} in the metadata")

    def delete_before(self, name: str, partition: int, offset: int) -> None:
        for deleted in self._admin.delete_records([TopicPartition(name, partition, offset)]).values():
            assert deleted.result(20).low_watermark == offset

    def delete(self) -> None:
        """Ends the client too: a query's callback may keep this object beyond the test."""
        for name, deleted in (self._admin.delete_topics(self._made) if self._made else {}).items():
            assert deleted.exception(20) is None, f"deleting {name}"
        del self._admin

    def fill(self, name: str, records: Iterable[Record], **settings: Any) -> None:
        """Sends the records and requires that every one is delivered."""
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
        assert producer.flush(60) == 0, "not everything was delivered within 60 s"
        assert errors == []

    def read(self, name: str) -> list[Message]:
        """Every record that the topic has now, by partition and offset."""
        settings = {"bootstrap.servers": self.bootstrap, "group.id": unique("reader"), "fetch.wait.max.ms": 50}
        consumer = Consumer(settings)
        try:
            partitions = consumer.list_topics(name, timeout=20).topics[name].partitions
            ends = {p: consumer.get_watermark_offsets(TopicPartition(name, p), timeout=20) for p in partitions}
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

            eventually(all_read, f"all of {name}: {ends}", timeout=60, interval=0)
        finally:
            consumer.close()
        return sorted(messages, key=lambda m: (m.partition(), m.offset()))

    def _has(self, name: str, partitions: int) -> bool:
        found = self._admin.list_topics(timeout=10).topics.get(name)
        if found is None or found.error or len(found.partitions) != partitions:
            return False
        return all(partition.leader >= 0 for partition in found.partitions.values())


def numbered(numbers: Iterable[int], partitions: int = 1) -> Iterable[Record]:
    """One record for each number: its text is the value, its partition the number modulo `partitions`."""
    return ({"value": str(n).encode(), "partition": n % partitions} for n in numbers)


def load(reader: Any, bootstrap: str, topic: str = "", **options: object) -> Any:
    """The DataFrame of `spark.read` or `spark.readStream` over Kafka; a dot of an option is written `__`."""
    reader = reader.format("kafka").option("kafka.bootstrap.servers", bootstrap)
    if topic:
        reader = reader.option("subscribe", topic)
    for name, value in options.items():
        reader = reader.option(name.replace("__", "."), str(value))
    return reader.load()


def numbers(frame: Any) -> list[int]:
    """The values of numbered records, sorted; a record read twice is there twice."""
    return sorted(int(row.n) for row in frame.selectExpr("CAST(value AS STRING) AS n").collect())


class Streams:
    """Streaming queries with their checkpoints in the test's directory. None outlives the test."""

    def __init__(self, spark: Any, directory: Path) -> None:
        self._spark = spark
        self._directory = directory
        self._running: list[Any] = []

    def run(self, writer: Any, checkpoint: str = "checkpoint", **trigger: Any) -> Any:
        """Starts the query of a `df.writeStream`; trigger: availableNow=True, processingTime="1 second", ..."""
        writer = writer.option("checkpointLocation", self.path(checkpoint))
        query = writer.trigger(**(trigger or {"processingTime": "100 milliseconds"})).start()
        self._running.append(query)
        return query

    def to_files(self, frame: Any, **how: Any) -> Any:
        """A query that appends to parquet files: each row exactly once, over restarts too."""
        return self.run(frame.writeStream.format("parquet").option("path", self.path("files")), **how)

    def files(self) -> Any:
        """The rows in those files, without those of unfinished batches."""
        return self._spark.read.schema("key binary, value binary").parquet(self.path("files"))

    def to_memory(self, frame: Any, table: str, mode: str = "append", **how: Any) -> Any:
        """A query whose result is `spark.table(table)`: the cheapest sink."""
        return self.run(frame.writeStream.format("memory").queryName(table).outputMode(mode), **how)

    def to_topic(self, frame: Any, bootstrap: str, topic: str = "", mode: str = "append", **how: Any) -> Any:
        """A query that sends its rows to Kafka: each at least once."""
        writer = frame.writeStream.format("kafka").option("kafka.bootstrap.servers", bootstrap).outputMode(mode)
        writer = writer.option("includeHeaders", "true")
        return self.run(writer.option("topic", topic) if topic else writer, **how)

    def path(self, name: str) -> str:
        return str(self._directory / name)

    def stop(self) -> None:
        for query in self._running:
            query.stop()


def finish(query: Any, timeout: float = 60) -> list[dict[str, Any]]:
    """Waits for a query that ends by itself, and returns the progress of its batches that had input."""
    assert query.awaitTermination(timeout), f"the query did not end within {timeout:g} s: {query.status}"
    progress = (json.loads(p.json) for p in query.recentProgress)
    return [p for p in progress if p["numInputRows"]]


def delivers(query: Any, frame: Callable[[], Any], wanted: list[int], timeout: float = 60) -> None:
    """Waits until a running query has delivered exactly these numbers; fails at once when it failed."""

    def enough() -> list[int]:
        assert query.isActive, f"the query ended: {query.exception()}"
        found = numbers(frame())
        return found if len(found) >= len(wanted) else []

    assert eventually(enough, f"{len(wanted)} rows delivered by the query", timeout, interval=0.1) == wanted


class Writer:
    """A transactional producer of numbered records, by confluent-kafka. One transaction at a time."""

    def __init__(self, topics: Topics) -> None:
        self._producer = Producer({"bootstrap.servers": topics.bootstrap, "transactional.id": unique("writer")})
        self._producer.init_transactions(30)
        self._open = False

    def begin(self, name: str, rows: Iterable[int], partitions: int = 1, pad: str = "") -> None:
        """Begins a transaction; its records are in the log when this returns, and it stays open."""
        self._producer.begin_transaction()
        self._open = True
        self.more(name, rows, partitions, pad)

    def more(self, name: str, rows: Iterable[int], partitions: int = 1, pad: str = "") -> None:
        """Further records of the open transaction. `pad`: zeros that make them longer, not other numbers."""
        errors: list[Any] = []
        for n in rows:
            value = f"{pad}{n}".encode()
            told = {"on_delivery": lambda error, _: error and errors.append(error)}
            self._producer.produce(name, value, partition=n % partitions, **told)
        assert self._producer.flush(60) == 0, "not everything was delivered within 60 s"
        assert errors == []

    def end(self, committed: bool) -> None:
        if committed:
            self._producer.commit_transaction(30)
        else:
            self._producer.abort_transaction(30)
        self._open = False

    def write(self, name: str, rows: Iterable[int], partitions: int, committed: bool, pad: str = "") -> None:
        """A whole transaction."""
        self.begin(name, rows, partitions, pad)
        self.end(committed)

    def close(self) -> None:
        if self._open:
            self.end(committed=False)
