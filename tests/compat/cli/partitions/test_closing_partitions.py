"""`kbroker topics alter --partitions` closes partitions under unchanged clients: kafka-python and librdkafka."""

import time
from typing import Any

import pytest
from confluent_kafka import Producer
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer
from kafka.structs import TopicPartition

from tests.compat.cli.conftest import Kbroker

pytestmark = pytest.mark.compat

DEADLINE_S = 120
# Not less: kafka-python 3.0 forgets the assignment of a SyncGroup response that arrives when a poll has just timed out.
POLL_MS = 2000


def read(consumer: Any, count: int) -> list[bytes]:
    """Read `count` records, and what else there is."""
    values: list[bytes] = []
    deadline_s = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline_s:
        records = consumer.poll(timeout_ms=POLL_MS)
        values += [record.value for rows in records.values() for record in rows]
        if not records and len(values) >= count:
            return values
    raise AssertionError(values)


def send_transaction(producer: Producer, topic: str, values: list[bytes], *, commit: bool) -> None:
    producer.begin_transaction()
    for number, value in enumerate(values):
        producer.produce(topic, value, partition=number % 3)
    producer.flush(DEADLINE_S)
    if commit:
        producer.commit_transaction(DEADLINE_S)
    else:
        producer.abort_transaction(DEADLINE_S)


def test_records_for_closing_partitions_are_read_once(bootstrap: str, kbroker: Kbroker, name: str) -> None:
    kbroker("topics", "create", name, "--partitions", "3")
    options: dict[str, Any] = {"bootstrap_servers": bootstrap, "metadata_max_age_ms": 500}
    consumer = KafkaConsumer(
        name,
        group_id=name,
        auto_offset_reset="earliest",
        enable_auto_commit=True,
        isolation_level="read_committed",
        **options,
    )
    producer = KafkaProducer(enable_idempotence=True, acks="all", **options)
    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    transactional = Producer(
        {"bootstrap.servers": bootstrap, "transactional.id": name, "topic.metadata.refresh.interval.ms": 500}
    )
    transactional.init_transactions(DEADLINE_S)
    try:
        for number in range(30):
            producer.send(name, b"before %d" % number, partition=number % 3)
        producer.flush()
        assert "partitions from 1 on are closing" in kbroker("topics", "alter", name, "--partitions", "1").out
        sent = [producer.send(name, b"after %d" % number, partition=number % 3) for number in range(60)]
        keyed = [producer.send(name, b"keyed %d" % number, key=b"%d" % number) for number in range(30)]
        for future in (*sent, *keyed):
            future.get(DEADLINE_S)
        send_transaction(transactional, name, [b"committed %d" % number for number in range(9)], commit=True)
        send_transaction(transactional, name, [b"aborted"] * 9, commit=False)
        expected = [b"before %d" % number for number in range(30)]
        expected += [b"after %d" % number for number in range(60)]
        expected += [b"keyed %d" % number for number in range(30)]
        expected += [b"committed %d" % number for number in range(9)]
        assert sorted(read(consumer, len(expected))) == sorted(expected)

        described = kbroker("topics", "describe", name, "--json").json()[0]["partitions"]
        assert [row["closing"] for row in described] == [False, True, True]
        ends = {TopicPartition(name, index): -1 for index in (1, 2)}
        admin.delete_records(ends)
        deadline_s = time.monotonic() + DEADLINE_S
        while len(kbroker("topics", "describe", name, "--json").json()[0]["partitions"]) > 1:
            assert time.monotonic() < deadline_s
            time.sleep(0.5)
        assert "may still send to removed partitions, from 1 on" in kbroker("topics", "describe", name).out
        # These producers have the removed partitions in their metadata, and refresh it meanwhile.
        last = []
        for number in range(5):
            last.append([b"last %d of %d" % (number, index) for index in range(30)])
            for future in [producer.send(name, value, key=value) for value in last[-1]]:
                future.get(DEADLINE_S)
            last.append([b"last committed %d of %d" % (number, index) for index in range(9)])
            send_transaction(transactional, name, last[-1], commit=True)
            time.sleep(0.5)
        expected = [value for values in last for value in values]
        assert sorted(read(consumer, len(expected))) == sorted(expected)
        deadline_s = time.monotonic() + DEADLINE_S
        while consumer.assignment() != {TopicPartition(name, 0)}:
            assert time.monotonic() < deadline_s
            assert not consumer.poll(timeout_ms=POLL_MS)
        assert "now has 3 partitions" in kbroker("topics", "alter", name, "--partitions", "3").out
        producer.send(name, b"again", partition=2).get(DEADLINE_S)
        assert read(consumer, 1) == [b"again"]
    finally:
        producer.close()
        consumer.close()
        admin.close()
