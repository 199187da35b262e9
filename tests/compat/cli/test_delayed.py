"""`kbroker delayed`: pending records of kafka-python's producer are listed, cancelled and delivered."""

from typing import Any

import pytest
from kafka import KafkaConsumer, KafkaProducer
from kafka.structs import TopicPartition

from tests.compat.cli.conftest import Kbroker

pytestmark = pytest.mark.compat

HOUR = [("TIMER_DELAY_SEC", b"3600")]
DEADLINE_S = 30


def test_pending_records(bootstrap: str, kbroker: Kbroker, try_kbroker: Kbroker, name: str) -> None:
    kbroker("topics", "create", name, "--partitions", "2", "--config", "kbroker.delay.enable=true")
    producer = KafkaProducer(bootstrap_servers=bootstrap)
    offsets = {}
    try:
        for number in range(4):
            key = b"a" if number % 2 else b"b"
            sent = producer.send(name, b"%d" % number, key=key, headers=HOUR, partition=number // 2)
            offsets[number] = sent.get(DEADLINE_S).offset
        producer.send(name, b"at once", partition=0).get(DEADLINE_S)
    finally:
        producer.close()
    listed = kbroker("delayed", "list", name, "--json").json()
    assert [(row["partition"], row["offset"], row["key"]) for row in listed] == [
        (0, 0, "b"), (0, 1, "a"), (1, 0, "b"), (1, 1, "a")
    ]  # fmt: skip
    assert "value" not in listed[0]
    assert listed[0]["headers"] == [{"key": "TIMER_DELAY_SEC", "value": "3600"}]
    (row,) = kbroker("delayed", "list", name, "-p", "1", "--key", "a", "--payload", "--json").json()
    assert row["value"] == "3"
    limited = kbroker("delayed", "list", name, "--limit", "1")
    assert len(limited.out.splitlines()) == 2
    assert "--limit" in limited.err

    assert kbroker("delayed", "cancel", name, "-p", "0", "-o", "0").out == f"{name}: 1 record cancelled\n"
    again = try_kbroker("delayed", "cancel", name, "-p", "0", "-o", "0")
    assert again.status == 1
    assert "not pending any more" in again.err
    assert kbroker("delayed", "deliver-now", name, "--key", "a").out == f"{name}: 2 records delivered\n"
    assert [row["pending"] for row in kbroker("delayed", "count", name, "--json").json()] == [0, 1]
    partitions = [TopicPartition(name, 0), TopicPartition(name, 1)]
    consumer = KafkaConsumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest")
    try:
        consumer.assign(partitions)
        values: list[Any] = []
        while any(consumer.position(tp) < end for tp, end in consumer.end_offsets(partitions).items()):
            for records in consumer.poll(timeout_ms=1000).values():
                values += [record.value for record in records]
        assert sorted(values) == [b"1", b"3", b"at once"]
    finally:
        consumer.close()

    kbroker("topics", "create", f"{name}-plain")
    refused = try_kbroker("delayed", "list", f"{name}-plain")
    assert refused.status == 1
    assert "kbroker.delay.enable" in refused.err
    assert try_kbroker("delayed", "cancel", name, "-o", "1").status == 2
    assert try_kbroker("delayed", "cancel", name).status == 2
    missing = try_kbroker("delayed", "count", f"{name}-missing")
    assert (missing.status, "does not exist" in missing.err) == (1, True)
