"""`kbroker topics alter --partitions` with fewer partitions, under a consumer group and a producer of kafka-python."""

from typing import Any

import pytest
from kafka import KafkaConsumer, KafkaProducer
from kafka.structs import TopicPartition

from tests.compat.cli.conftest import Kbroker

pytestmark = pytest.mark.compat

DEADLINE_S = 60
# Not less: kafka-python 3.0 forgets the assignment of a SyncGroup response that arrives when a poll has just timed out.
POLL_MS = 2000


def read(consumer: Any, count: int) -> list[bytes]:
    values: list[bytes] = []
    for _ in range(DEADLINE_S * 1000 // POLL_MS):
        for records in consumer.poll(timeout_ms=POLL_MS).values():
            values += [record.value for record in records]
        if len(values) >= count:
            return values
    raise AssertionError(values)


def test_clients_continue_with_fewer_partitions(
    bootstrap: str, kbroker: Kbroker, try_kbroker: Kbroker, name: str
) -> None:
    kbroker("topics", "create", name, "--partitions", "4")
    options: dict[str, Any] = {"bootstrap_servers": bootstrap, "metadata_max_age_ms": 500}
    consumer = KafkaConsumer(name, group_id=name, auto_offset_reset="earliest", enable_auto_commit=False, **options)
    producer = KafkaProducer(enable_idempotence=True, acks="all", **options)
    try:
        for number in range(10):
            producer.send(name, b"%d" % number, partition=number % 2)
        producer.flush()
        assert sorted(read(consumer, 10)) == [b"%d" % number for number in range(10)]
        assert len(consumer.assignment()) == 4
        consumer.commit()
        assert consumer.committed(TopicPartition(name, 3)) == 0

        refused = try_kbroker("topics", "alter", name, "--partitions", "4")
        assert refused.status == 1
        assert "Topic already has 4 partition(s)" in refused.err
        assert kbroker("topics", "alter", name, "--partitions", "2").out == f"{name}: now has 2 partitions\n"

        for number in range(10, 30):
            producer.send(name, b"%d" % number, key=b"%d" % number).get(DEADLINE_S)
        assert sorted(read(consumer, 20)) == [b"%d" % number for number in range(10, 30)]
        for _ in range(DEADLINE_S * 1000 // POLL_MS):
            if {tp.partition for tp in consumer.assignment()} == {0, 1}:
                break
            consumer.poll(timeout_ms=POLL_MS)
        assert {tp.partition for tp in consumer.assignment()} == {0, 1}

        # The group begins again with these partitions.
        kbroker("topics", "alter", name, "--partitions", "4")
        assert consumer.committed(TopicPartition(name, 3)) is None
        producer.send(name, b"new", partition=3).get(DEADLINE_S)
        assert read(consumer, 1) == [b"new"]
    finally:
        producer.close()
        consumer.close()
