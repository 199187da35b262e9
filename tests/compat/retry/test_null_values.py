"""Records with null headers, and with neither key nor value, pass through retries and redrives."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from kafka import KafkaConsumer, KafkaProducer

from kbroker.cli.app import run
from kbroker.retry import AsyncRetryingConsumer, RetryingConsumer, RetryPolicy
from tests.compat.support import eventually

pytestmark = [pytest.mark.compat, pytest.mark.feature("retries and dead letters")]

Record = tuple[bytes | None, bytes | None, Sequence[tuple[str, bytes | None]]]
HEADERS = [("none", None), ("empty", b""), ("full", b"x")]


def fail(record: Any) -> None:
    raise ValueError("cannot process")


def produce(bootstrap: str, topic: str, origin: str = "") -> None:
    """Produce a record with null headers, and one that has no key and no value either."""
    producer = Producer({"bootstrap.servers": bootstrap})
    extra = [("__dlq.errors.topic", origin.encode())] if origin else []
    producer.produce(topic, b"value", headers=[*HEADERS, *extra], partition=0)
    producer.produce(topic, None, headers=[*HEADERS, *extra], partition=0)
    assert producer.flush(30) == 0


def read(bootstrap: str, topic: str) -> list[Record]:
    """Return two records of a topic as librdkafka reads them."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": topic, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    records: list[Record] = []

    def has_both() -> bool:
        message = consumer.poll(0.2)
        if message is not None and not message.error():
            own = [header for header in message.headers() or () if header[0] in dict(HEADERS)]
            records.append((message.key(), message.value(), own))
        return len(records) == 2

    eventually(has_both, "both records are read", interval=0)
    consumer.close()
    return records


def run_kafka_python(bootstrap: str, policy: RetryPolicy) -> None:
    settings = {"bootstrap_servers": bootstrap}
    consumer = KafkaConsumer(**settings, group_id=policy.group, enable_auto_commit=False, auto_offset_reset="earliest")
    # Otherwise kafka-python 3.0.12 may assign no partition: it joins before it knows the topic.
    assert consumer.partitions_for_topic(policy.topic)
    consumer.subscribe([policy.topic])
    producer = KafkaProducer(**settings)
    _run_until_both(RetryingConsumer(consumer, producer, policy))
    consumer.close()
    producer.close()


def run_confluent(bootstrap: str, policy: RetryPolicy) -> None:
    settings = {"bootstrap.servers": bootstrap}
    consumer = Consumer(
        {**settings, "group.id": policy.group, "enable.auto.commit": False, "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([policy.topic])
    _run_until_both(RetryingConsumer(consumer, Producer(settings), policy))
    consumer.close()


def _run_until_both(retrying: RetryingConsumer) -> None:
    failed = 0

    def has_failed() -> bool:
        nonlocal failed
        failed += len(retrying.poll(fail, 0.2).outgoing)
        return failed == 2

    eventually(has_failed, "both records have failed", interval=0)


def run_aiokafka(bootstrap: str, policy: RetryPolicy) -> None:
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

    async def fail_later(record: Any) -> None:
        fail(record)

    async def main() -> None:
        consumer = AIOKafkaConsumer(
            policy.topic,
            bootstrap_servers=bootstrap,
            group_id=policy.group,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
        )
        producer = AIOKafkaProducer(bootstrap_servers=bootstrap)
        await consumer.start()
        await producer.start()
        retrying, failed = AsyncRetryingConsumer(consumer, producer, policy), 0
        async with asyncio.timeout(60):
            while failed < 2:
                failed += len((await retrying.poll(fail_later, 0.2)).outgoing)
        await consumer.stop()
        await producer.stop()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("client", "value"),
    [
        # These two refuse a record without key and value.
        pytest.param(run_kafka_python, b"", marks=pytest.mark.client("kafka_python")),
        pytest.param(run_aiokafka, b"", marks=pytest.mark.client("aiokafka")),
        pytest.param(run_confluent, None, marks=pytest.mark.client("confluent_kafka")),
    ],
)
def test_a_failed_record_keeps_its_null_headers(
    bootstrap: str, name: str, group: str, client: Any, value: bytes | None
) -> None:
    policy = RetryPolicy(name, group, attempts=1)
    assert run(["topics", "create", name, policy.dead_letter_topic, "-p", "1", "-b", bootstrap]) == 0
    produce(bootstrap, name)
    client(bootstrap, policy)
    assert read(bootstrap, policy.dead_letter_topic) == [(None, b"value", HEADERS), (None, value, HEADERS)]


@pytest.mark.client("cli")
def test_a_redriven_record_keeps_its_nulls(bootstrap: str, name: str) -> None:
    dead = f"dlq.{name}"
    assert run(["topics", "create", name, "-p", "1", "-b", bootstrap]) == 0
    assert run(["retry", "create", name, "-g", "billing", "-b", bootstrap]) == 0
    produce(bootstrap, dead, name)
    assert run(["dlq", "redrive", dead, "-b", bootstrap]) == 0
    assert read(bootstrap, name) == [(None, b"value", HEADERS), (None, None, HEADERS)]


@pytest.mark.client("cli")
def test_consumed_records_are_produced_again_with_their_nulls(
    bootstrap: str, name: str, tmp_path: Path, capsys: Any
) -> None:
    copy, lines = f"{name}-copy", tmp_path / "lines"
    assert run(["topics", "create", name, copy, "-p", "1", "-b", bootstrap]) == 0
    producer = Producer({"bootstrap.servers": bootstrap})
    producer.produce(name, None, b"key", headers=HEADERS)
    producer.produce(name, b"value", headers=HEADERS)
    assert producer.flush(30) == 0
    capsys.readouterr()
    assert run(["consume", name, "--json", "-b", bootstrap]) == 0
    lines.write_text(capsys.readouterr().out)
    assert run(["produce", copy, "--json", "--file", str(lines), "-b", bootstrap]) == 0
    assert read(bootstrap, copy) == [(b"key", None, HEADERS), (None, b"value", HEADERS)]
