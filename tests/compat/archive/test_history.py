"""Consumers read offsets that retention has deleted from the archive of the topic, and go on in the log."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from kbroker.cli.topics.archive_lag import late_archives
from kbroker.client.admin import TOPIC, TypedResource, alter_configs, describe_topics
from kbroker.replica.partition import Partition
from kbroker.testing import Broker, Cluster
from kbroker.testing.kafka import Kafka
from tests.compat.archive.archived import archive_topic
from tests.compat.kafka_tools.jvm import Jvm
from tests.compat.kafka_tools.test_java_clients import JavaClients

pytestmark = pytest.mark.feature("history in an archive")

RECORDS, NEW = 3_000, 200
DEADLINE_S = 60.0


class Row(NamedTuple):
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


class Archived(NamedTuple):
    """A topic whose records are all in the archive but the last `NEW`, and mostly no longer in the log."""

    kafka: Kafka
    topic: str
    directory: Path
    original: list[Row]

    def rows(self, partition: int, offset: int) -> list[Row]:
        return [row for row in self.original if row.partition == partition and row.offset >= offset]

    def partition(self, index: int) -> Partition:
        """Return the partition at its leader."""
        partitions = [thread.broker.services.replicas.get(self.topic, index) for thread in self.kafka.running()]
        return next(each for each in partitions if each is not None and each.is_leader)


def make_archived(kafka: Kafka, directory: Path, topic: str, **config: object) -> Archived:
    config = {
        "internal.segment.bytes": 30_000,
        "kbroker.archive.table": directory,
        "kbroker.archive.before.delete": True,
        **config,
    }
    kafka.topic(topic, partitions=2, config=config)
    for partition in (0, 1):
        for start in range(0, RECORDS, 100):
            kafka.produce(topic, map(make_record, range(start, start + 100)), partition=partition)
    archive_topic(kafka, directory, topic)
    for partition in (0, 1):
        kafka.produce(topic, map(make_record, range(RECORDS, RECORDS + NEW)), partition=partition)
    original = [
        Row(each.partition, each.offset, each.timestamp, each.key, each.value, each.headers)
        for each in kafka.consume(topic, timeout_s=DEADLINE_S)
    ]
    assert len(original) == 2 * (RECORDS + NEW)
    archived = Archived(kafka, topic, directory, original)
    set_config(kafka, topic, "retention.bytes", "20000")
    wait_until(lambda: all(archived.partition(index).log.log_start_offset > RECORDS // 2 for index in (0, 1)))
    return archived


def make_record(number: int) -> tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]]]:
    """Records with null, empty and other keys, values and headers."""
    headers: list[tuple[str, bytes | None]] = [("n", b"%d" % number), ("none", None), ("n", b"")]
    key = (None, b"", b"key %d" % number)[number % 3]
    value = (b"value %d" % number).ljust(60) if number % 7 else (None, b"")[number % 2]
    return key, value, headers[: number % 4]


def set_config(kafka: Kafka, topic: str, name: str, value: str) -> None:
    with kafka.client() as cluster:
        alter_configs(cluster, TypedResource(TOPIC, topic), {name: ("SET", value)})


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture(scope="module")
def archived(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Archived]:
    with Broker() as kafka:
        yield make_archived(kafka, tmp_path_factory.mktemp("archive"), "archived", **{"kbroker.archive.earliest": True})


# Each reader returns the records from an offset on, up to `count`. `pause` is called after half of them.

Reader = Callable[[str, str, int, int, int, Callable[[], object]], list[Row]]


def read_with_kafka_python(
    bootstrap: str, topic: str, partition: int, offset: int, count: int, pause: Callable[[], object]
) -> list[Row]:
    from kafka import KafkaConsumer, TopicPartition

    consumer = KafkaConsumer(bootstrap_servers=bootstrap, auto_offset_reset="none", isolation_level="read_committed")
    consumer.assign([TopicPartition(topic, partition)])
    consumer.seek(TopicPartition(topic, partition), offset)
    rows: list[Row] = []
    deadline, is_paused = time.monotonic() + DEADLINE_S, False
    while len(rows) < count and time.monotonic() < deadline:
        for records in consumer.poll(200).values():
            rows += [Row(r.partition, r.offset, r.timestamp, r.key, r.value, tuple(r.headers)) for r in records]
        if not is_paused and len(rows) >= count // 2:
            is_paused = True
            pause()
    consumer.close()
    return rows


def read_with_confluent_kafka(
    bootstrap: str, topic: str, partition: int, offset: int, count: int, pause: Callable[[], object]
) -> list[Row]:
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "g", "auto.offset.reset": "error"})
    consumer.assign([TopicPartition(topic, partition, offset)])
    rows: list[Row] = []
    deadline, is_paused = time.monotonic() + DEADLINE_S, False
    while len(rows) < count and time.monotonic() < deadline:
        for m in consumer.consume(500, 0.2):
            if m.error() is None:
                headers = tuple(m.headers() or ())
                rows.append(Row(m.partition(), m.offset(), m.timestamp()[1], m.key(), m.value(), headers))
        if not is_paused and len(rows) >= count // 2:
            is_paused = True
            pause()
    consumer.close()
    return rows


def read_with_aiokafka(
    bootstrap: str, topic: str, partition: int, offset: int, count: int, pause: Callable[[], object]
) -> list[Row]:
    from aiokafka import AIOKafkaConsumer, TopicPartition

    async def read() -> list[Row]:
        consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, auto_offset_reset="none")
        await consumer.start()
        consumer.assign([TopicPartition(topic, partition)])
        consumer.seek(TopicPartition(topic, partition), offset)
        rows: list[Row] = []
        deadline, is_paused = time.monotonic() + DEADLINE_S, False
        while len(rows) < count and time.monotonic() < deadline:
            for records in (await consumer.getmany(timeout_ms=200)).values():
                rows += [Row(r.partition, r.offset, r.timestamp, r.key, r.value, tuple(r.headers)) for r in records]
            if not is_paused and len(rows) >= count // 2:
                is_paused = True
                await asyncio.to_thread(pause)
        await consumer.stop()
        return rows

    return asyncio.run(read())


READERS = [
    pytest.param(read_with_kafka_python, marks=pytest.mark.client("kafka_python"), id="kafka-python"),
    pytest.param(read_with_confluent_kafka, marks=pytest.mark.client("confluent_kafka"), id="confluent-kafka"),
    pytest.param(read_with_aiokafka, marks=pytest.mark.client("aiokafka"), id="aiokafka"),
]


def check_rows(found: Sequence[Row], expected: Sequence[Row]) -> None:
    assert [row.offset for row in found] == [row.offset for row in expected]
    assert found == expected


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("offset", [0, 1234])
def test_records_that_retention_has_deleted(archived: Archived, reader: Reader, offset: int) -> None:
    """Each record comes once, as it was; the border to the log cannot be seen."""
    expected = archived.rows(1, offset)
    check_rows(reader(archived.kafka.bootstrap, archived.topic, 1, offset, len(expected), lambda: None), expected)


@pytest.mark.parametrize("reader", READERS)
def test_another_leader_in_the_middle(tmp_path: Path, reader: Reader) -> None:
    """The next leader reads the archive with a process of its own."""
    with Cluster(3) as kafka:
        archived = make_archived(kafka, tmp_path, "moved")
        expected = archived.rows(0, 0)

        def kill_leader() -> None:
            kafka.kill(kafka.leader(archived.topic, 0))

        check_rows(reader(kafka.bootstrap, archived.topic, 0, 0, len(expected), kill_leader), expected)


@pytest.mark.client("kafka_tools")
def test_java_positions_are_valid_for_another_leader(tmp_path: Path, jvm: Jvm) -> None:
    """A Java consumer compares its position below the log with the leader epochs of the next leader (KIP-320)."""
    with Cluster(3) as kafka:
        archived = make_archived(kafka, tmp_path, "java")
        expected = archived.rows(0, 0)
        java = JavaClients(jvm, kafka.bootstrap)
        consumer = java.consumer(auto_offset_reset="none", enable_auto_commit="false")
        partition = java.partition(archived.topic, 0)
        consumer.assign(java.listed(partition))
        consumer.seek(partition, 0)
        found: list[Row] = []
        deadline, moves = time.monotonic() + 4 * DEADLINE_S, 0  # two leaders are killed and start again
        while len(found) < len(expected) and time.monotonic() < deadline:
            found += [
                Row(r.partition(), r.offset(), r.timestamp(), r.key(), r.value(), headers_of(r))
                for r in java.poll(consumer, 200)
            ]
            if len(found) > (moves + 1) * 800 and moves < 2:
                # In the middle of the history, below the log.
                moves += 1
                leader = kafka.leader(archived.topic, 0)
                kafka.kill(leader)
                wait_until(lambda former=leader: kafka.leader(archived.topic, 0) != former)  # type: ignore[misc]
                kafka.start(leader)
        java.close()
        assert moves == 2
        check_rows(found, expected)


def headers_of(record: Any) -> tuple[tuple[str, bytes | None], ...]:
    return tuple((header.key(), header.value()) for header in record.headers().toArray())


@pytest.mark.client("confluent_kafka")
def test_a_new_group_begins_with_the_archive(archived: Archived) -> None:
    """With auto.offset.reset=earliest; and a time before the log is found in the archive."""
    from confluent_kafka import Consumer, TopicPartition

    config = {"bootstrap.servers": archived.kafka.bootstrap, "group.id": "new", "auto.offset.reset": "earliest"}
    consumer = Consumer(config)
    consumer.subscribe([archived.topic])
    rows: list[tuple[int, int]] = []
    deadline = time.monotonic() + DEADLINE_S
    while len(rows) < len(archived.original) and time.monotonic() < deadline:
        rows += [(m.partition(), m.offset()) for m in consumer.consume(500, 0.2) if m.error() is None]
    assert sorted(rows) == sorted((row.partition, row.offset) for row in archived.original)
    middle = archived.rows(1, 0)[RECORDS // 3]
    first = next(row for row in archived.rows(1, 0) if row.timestamp >= middle.timestamp)
    (found,) = consumer.offsets_for_times([TopicPartition(archived.topic, 1, middle.timestamp)], timeout=10)
    assert found.offset == first.offset
    consumer.close()


def history_pids(kafka: Kafka) -> list[int]:
    services: list[Any] = [thread.broker.services.replicas.history.client._service for thread in kafka.running()]
    return [service._process.pid for service in services if service is not None]


@pytest.mark.parametrize("reader", READERS[:2])
def test_damaged_files(tmp_path: Path, reader: Reader) -> None:
    """They fail their partition only. Its consumers neither end nor skip records, and go on when the files are back."""
    with Broker() as kafka:
        archived = make_archived(kafka, tmp_path, "damaged")
        files = {path: path.read_bytes() for path in tmp_path.rglob("partition=0/*.parquet")}
        assert files

        def damage() -> None:
            for number, (path, data) in enumerate(files.items()):
                path.write_bytes(data[: len(data) // 2]) if number % 2 else path.unlink()
            for pid in history_pids(kafka):
                os.kill(pid, signal.SIGKILL)

        found: list[Row] = []
        damage()
        expected = archived.rows(0, 0)
        reading = threading.Thread(
            target=lambda: found.extend(reader(kafka.bootstrap, archived.topic, 0, 0, len(expected), lambda: None))
        )
        reading.start()
        others = archived.rows(1, 0)
        check_rows(reader(kafka.bootstrap, archived.topic, 1, 0, len(others), lambda: None), others)
        assert found == []
        failures = kafka.running()[0].broker.services.replicas.history.client.failures
        wait_until(lambda: sum(failures.values()))
        for path, data in files.items():
            path.write_bytes(data)
        reading.join(DEADLINE_S)
        check_rows(found, expected)


@pytest.mark.client("kafka_python")
def test_a_slow_archive_delays_nobody_else(tmp_path: Path) -> None:
    """While the history process does not respond, a bystander's fetches take as long as before."""
    from kafka import KafkaConsumer, KafkaProducer, TopicPartition

    with Broker() as kafka:
        archived = make_archived(kafka, tmp_path, "slow")
        other = kafka.topic("other")
        producer = KafkaProducer(bootstrap_servers=kafka.bootstrap, linger_ms=0)
        bystander = KafkaConsumer(bootstrap_servers=kafka.bootstrap)
        bystander.assign([TopicPartition(other, 0)])
        bystander.seek(TopicPartition(other, 0), 0)

        def p99_ms() -> float:
            """Return the p99 of the time from a record's send until it is consumed."""
            times = []
            for _ in range(300):
                began = time.monotonic()
                producer.send(other, b"x")
                while not bystander.poll(1000):
                    pass
                times.append(1000 * (time.monotonic() - began))
            return sorted(times)[296]

        p99_ms()
        before_ms = p99_ms()
        waiting = KafkaConsumer(bootstrap_servers=kafka.bootstrap, auto_offset_reset="none")
        waiting.assign([TopicPartition(archived.topic, 0), TopicPartition(other, 0)])
        waiting.seek(TopicPartition(archived.topic, 0), 0)
        waiting.seek(TopicPartition(other, 0), 0)
        (pid,) = history_pids(kafka)
        os.kill(pid, signal.SIGSTOP)
        try:
            polls = threading.Event()
            got: dict[TopicPartition, int] = {}

            def poll() -> None:
                while not polls.is_set():
                    for tp, records in waiting.poll(100).items():
                        got[tp] = got.get(tp, 0) + len(records)

            polling = threading.Thread(target=poll)
            polling.start()
            during_ms = p99_ms()
            wait_until(lambda: got.get(TopicPartition(other, 0), 0) >= 900)
            assert TopicPartition(archived.topic, 0) not in got
        finally:
            os.kill(pid, signal.SIGCONT)
        wait_until(lambda: got.get(TopicPartition(archived.topic, 0), 0) == RECORDS + NEW)
        polls.set()
        polling.join()
        for client in (waiting, bystander, producer):
            client.close()
        assert during_ms < 2 * before_ms + 5


@pytest.mark.client("cli")
def test_archives_that_lag_behind(archived: Archived) -> None:
    """`topics describe` says what is not archived yet, and `doctor` which archives cannot be read."""
    command = [sys.executable, "-m", "kbroker", "topics", "describe", archived.topic, "--bootstrap"]
    shown = subprocess.run([*command, archived.kafka.bootstrap, "--json"], capture_output=True, text=True, check=True)
    (topic,) = json.loads(shown.stdout)
    for partition in topic["partitions"]:
        lag = partition["archive"]
        assert (lag["offset"], lag["records"]) == (RECORDS, NEW)
        assert 0 < lag["seconds"] < 1000
        assert (partition["earliest_offset"], partition["latest_offset"]) == (0, RECORDS + NEW)
    absent = archived.kafka.topic(partitions=2, config={"kbroker.archive.table": "/nowhere"})
    with archived.kafka.client() as cluster:
        topics = describe_topics(cluster, [archived.topic, absent])
        (sentence,) = late_archives(cluster, topics)
    assert sentence == f"2 partitions of topic {absent} cannot be read in its archive /nowhere"
