"""Failed records that are too large for the retry topic, the dead-letter topic or the producer do not block others."""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import KafkaAdminClient

from kbroker.cli.app import run
from kbroker.retry import AsyncRetryingConsumer, OutgoingRecord, RetryingConsumer, RetryPolicy
from tests.compat.support import eventually

pytestmark = [pytest.mark.compat, pytest.mark.feature("retries and dead letters")]

LIMIT = 3_000
MIB = 1 << 20

Handler = Callable[[bytes], list[OutgoingRecord]]
# Polls once; returns the number of records that were processed.
Poll = Callable[[], int]


class Read:
    """A record as librdkafka reads it."""

    def __init__(self, message: Any) -> None:
        self.key, self.value, self.offset = message.key(), message.value(), message.offset()
        self.headers = dict(message.headers() or ())

    @property
    def origin(self) -> list[bytes | None]:
        return [self.headers.get(f"__dlq.errors.{name}") for name in ("topic", "partition", "offset")]

    @property
    def omitted(self) -> bytes | None:
        return self.headers.get("kbroker.dlq.omitted")


def read(bootstrap: str, topic: str, count: int) -> list[Read]:
    """Return the committed records of partition 0, at least `count` of them."""
    settings = {"bootstrap.servers": bootstrap, "group.id": topic, "auto.offset.reset": "earliest"}
    consumer = Consumer({**settings, "isolation.level": "read_committed", "enable.auto.commit": False})
    consumer.subscribe([topic])
    records: list[Read] = []

    def has_all() -> bool:
        message = consumer.poll(0.5)
        if message is not None and not message.error():
            records.append(Read(message))
        return len(records) >= count

    eventually(has_all, f"{count} records of {topic}", interval=0)
    consumer.close()
    return records


@contextmanager
def kafka_python(bootstrap: str, policy: RetryPolicy, exactly_once: bool, handler: Handler) -> Iterator[Poll]:
    settings = {"bootstrap_servers": bootstrap}
    isolation = "read_committed" if exactly_once else "read_uncommitted"
    consumer = KafkaConsumer(
        **settings, group_id=policy.group, enable_auto_commit=False, auto_offset_reset="earliest",
        isolation_level=isolation,
    )  # fmt: skip
    assert consumer.partitions_for_topic(policy.topic)
    consumer.subscribe(policy.topics)
    # With linger_ms the records of a poll share a batch, which may be too large.
    producer = KafkaProducer(**settings, linger_ms=50, transactional_id=policy.group if exactly_once else None)
    retrying = RetryingConsumer(consumer, producer, policy, exactly_once=exactly_once)

    def poll() -> int:
        batch = retrying.poll(lambda record: handler(record.value), 0.2)
        return batch.failed + batch.succeeded

    yield poll
    consumer.close()
    producer.close()


@contextmanager
def confluent_kafka(bootstrap: str, policy: RetryPolicy, exactly_once: bool, handler: Handler) -> Iterator[Poll]:
    settings = {"bootstrap.servers": bootstrap}
    isolation = "read_committed" if exactly_once else "read_uncommitted"
    group = {"group.id": policy.group, "enable.auto.commit": False, "auto.offset.reset": "earliest"}
    consumer = Consumer({**settings, **group, "isolation.level": isolation})
    consumer.subscribe(policy.topics)
    sending = {"transactional.id": policy.group} if exactly_once else {"enable.idempotence": True}
    producer = Producer({**settings, **sending, "linger.ms": 50})
    retrying = RetryingConsumer(consumer, producer, policy, exactly_once=exactly_once)

    def poll() -> int:
        batch = retrying.poll(lambda message: handler(message.value()), 0.2)
        return batch.failed + batch.succeeded

    yield poll
    consumer.close()


@contextmanager
def aiokafka(bootstrap: str, policy: RetryPolicy, exactly_once: bool, handler: Handler) -> Iterator[Poll]:
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

    async def start() -> tuple[Any, Any, Any]:
        consumer = AIOKafkaConsumer(
            *policy.topics,
            bootstrap_servers=bootstrap,
            group_id=policy.group,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            isolation_level="read_committed" if exactly_once else "read_uncommitted",
        )
        transactional_id = policy.group if exactly_once else None
        producer = AIOKafkaProducer(bootstrap_servers=bootstrap, linger_ms=50, transactional_id=transactional_id)
        await consumer.start()
        await producer.start()
        return consumer, producer, AsyncRetryingConsumer(consumer, producer, policy, exactly_once=exactly_once)

    async def handle(record: Any) -> list[OutgoingRecord]:
        return handler(record.value)

    with asyncio.Runner() as runner:
        consumer, producer, retrying = runner.run(start())

        async def poll_once() -> int:
            batch = await retrying.poll(handle, 0.2)
            return int(batch.failed + batch.succeeded)

        yield lambda: runner.run(poll_once())

        async def stop(*parts: Callable[[], Awaitable[None]]) -> None:
            for part in parts:
                await part()

        runner.run(stop(consumer.stop, producer.stop))


pytest_clients = pytest.mark.parametrize(
    "client",
    [pytest.param(each, marks=pytest.mark.client(each.__name__)) for each in (kafka_python, confluent_kafka, aiokafka)],
)
modes = pytest.mark.parametrize("exactly_once", [False, True], ids=["at-least-once", "exactly-once"])


def create(bootstrap: str, policy: RetryPolicy, limits: dict[str, int]) -> None:
    """Create the topics, with max.message.bytes of each."""
    delays = ["--delays", "1s", "--attempts", str(policy.attempts)]
    assert run(["topics", "create", policy.topic, "-p", "1", "-b", bootstrap]) == 0
    assert run(["retry", "create", policy.topic, "-g", policy.group, *delays, "-p", "1", "-b", bootstrap]) == 0
    for topic, limit in limits.items():
        assert run(["configs", "set", "topic", topic, f"max.message.bytes={limit}", "-b", bootstrap]) == 0


def produce(bootstrap: str, topic: str, *values: bytes) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "message.max.bytes": 8 * MIB})
    for value in values:
        producer.produce(topic, value, b"k", headers=[("trace", b"7")])
    assert producer.flush(60) == 0


def process_all(poll: Poll, count: int) -> None:
    processed = 0

    def is_done() -> bool:
        nonlocal processed
        processed += poll()
        return processed >= count

    eventually(is_done, f"{count} records are processed", interval=0)


def fail(value: bytes) -> list[OutgoingRecord]:
    if value.startswith(b"good"):
        return []
    raise ValueError("cannot process")


def padded(value: bytes, size: int) -> bytes:
    return value + b"." * (size - len(value))


@modes
@pytest_clients
def test_a_topic_refuses_a_large_record(
    bootstrap: str, name: str, group: str, client: Any, exactly_once: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """The retry topic accepts less than the dead-letter topic, and neither accepts the largest record."""
    policy = RetryPolicy(name, group, attempts=2, delays_ms=(1000,))
    create(bootstrap, policy, {policy.retry_topic: LIMIT, policy.dead_letter_topic: 2 * LIMIT})
    values = [b"good-1", b"bad-small", padded(b"bad-medium", LIMIT - 100), padded(b"bad-large", 2 * LIMIT - 100)]
    values += [b"bad-last", b"good-2"]
    produce(bootstrap, name, *values)
    with caplog.at_level(logging.WARNING, "kbroker.retry"), client(bootstrap, policy, exactly_once, fail) as poll:
        # The two small ones come back from the retry topic.
        process_all(poll, len(values) + 2)
    letters = {letter.origin[2]: letter for letter in read(bootstrap, policy.dead_letter_topic, 4)}
    assert sorted(letters) == [b"1", b"2", b"3", b"4"]
    for offset in (b"1", b"2", b"4"):
        letter = letters[offset]
        assert letter.value == values[int(offset)]
        assert (letter.headers["trace"], letter.omitted) == (b"7", None)
    attempts = {offset: letter.headers["__dlq.errors.delivery.count"] for offset, letter in letters.items()}
    assert attempts == {b"1": b"2", b"2": b"1", b"3": b"1", b"4": b"2"}
    pointer = letters[b"3"]
    assert (pointer.key, pointer.value or b"", pointer.omitted) == (b"k", b"", b"value,headers")
    assert pointer.origin == [name.encode(), b"0", b"3"]
    assert pointer.headers["__dlq.errors.message"] == b"cannot process"
    # The delivery from the retry topic leaves no trace.
    assert not any(header.startswith("kbroker.delayed") for letter in letters.values() for header in letter.headers)
    assert f"the record at {name}-0 offset 3 cannot be sent to {policy.dead_letter_topic}" in caplog.text


@modes
@pytest_clients
def test_the_producer_refuses_a_large_record(
    bootstrap: str, name: str, group: str, client: Any, exactly_once: bool
) -> None:
    """The producers have a limit of about 1 MB, and the record of another producer is larger."""
    policy = RetryPolicy(name, group, attempts=2, delays_ms=(1000,))
    create(bootstrap, policy, dict.fromkeys((name, policy.retry_topic, policy.dead_letter_topic), 8 * MIB))
    values = [b"bad-small", padded(b"bad-large", 2 * MIB), b"good"]
    produce(bootstrap, name, *values)
    with client(bootstrap, policy, exactly_once, fail) as poll:
        process_all(poll, len(values) + 1)
    letters = {letter.origin[2]: letter for letter in read(bootstrap, policy.dead_letter_topic, 2)}
    assert (letters[b"0"].value, letters[b"0"].omitted) == (b"bad-small", None)
    assert (letters[b"1"].value or b"", letters[b"1"].omitted) == (b"", b"value,headers")


@modes
@pytest_clients
def test_a_returned_record_that_is_too_large_is_a_failure(
    bootstrap: str, name: str, group: str, client: Any, exactly_once: bool
) -> None:
    """Otherwise the record would be processed again and again, and block those behind it."""
    policy, output = RetryPolicy(name, group, attempts=1), f"{name}-out"
    create(bootstrap, policy, {})
    assert run(["topics", "create", output, "-p", "1", "--config", f"max.message.bytes={LIMIT}", "-b", bootstrap]) == 0
    produce(bootstrap, name, b"good-1", b"grows", b"good-2")

    def handler(value: bytes) -> list[OutgoingRecord]:
        return [OutgoingRecord(output, padded(value, 2 * LIMIT) if value == b"grows" else value, b"k")]

    with client(bootstrap, policy, exactly_once, handler) as poll:
        process_all(poll, 3)
    [letter] = read(bootstrap, policy.dead_letter_topic, 1)
    assert (letter.value, letter.origin) == (b"grows", [name.encode(), b"0", b"1"])
    assert sorted(record.value for record in read(bootstrap, output, 2)) == [b"good-1", b"good-2"]


@pytest.mark.client("cli")
def test_pointers_are_shown_and_redriven(bootstrap: str, name: str, group: str, capsys: Any) -> None:
    """The command sends the record that a pointer names, if it is still there."""
    policy = RetryPolicy(name, group, attempts=1)
    create(bootstrap, policy, {policy.dead_letter_topic: LIMIT})
    values = [padded(b"bad-%d" % number, 2 * LIMIT) for number in range(3)] + [b"bad-small"]
    produce(bootstrap, name, *values)
    with kafka_python(bootstrap, policy, False, fail) as poll:
        process_all(poll, len(values))
    dead = policy.dead_letter_topic
    capsys.readouterr()
    assert run(["dlq", "show", dead, "-b", bootstrap]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert ["[only a pointer, without value, headers]" in line for line in shown[1:]] == [False] + [True] * 3
    assert run(["dlq", "show", dead, "--json", "-b", bootstrap]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert ["kbroker.dlq.omitted" in str(row["headers"]) for row in rows] == [False] + [True] * 3

    # The first record is gone.
    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    admin.delete_records({TopicPartition(name, 0): 1})
    admin.close()
    assert run(["dlq", "redrive", dead, "-b", bootstrap]) == 1
    captured = capsys.readouterr()
    assert "3 records sent" in captured.out
    assert "1 pointer to records that are gone" in captured.err
    redriven = read(bootstrap, name, 6)[3:]
    assert [record.value for record in redriven] == [values[3], values[1], values[2]]
    for record in redriven:
        assert (record.key, record.headers["trace"]) == (b"k", b"7")
        assert record.headers.keys() <= {"trace", "kafka_dlt-original-timestamp"}
