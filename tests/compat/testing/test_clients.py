"""Unchanged clients against a broker inside the test: they see its clock, its faults and its end."""

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from types import SimpleNamespace
from typing import Any

import confluent_kafka
import kafka as kafka_python
import pytest

from kbroker.testing import Broker, Cluster

pytestmark = [pytest.mark.compat]
HOUR_MS = 3_600_000


@contextmanager
def confluent_consumer(kafka: Broker, topic: str, group: str, **conf: Any) -> Iterator[Any]:
    settings = {"bootstrap.servers": kafka.bootstrap, "group.id": group, "auto.offset.reset": "earliest", **conf}
    consumer = confluent_kafka.Consumer(settings)
    consumer.subscribe([topic])
    try:
        yield consumer
    finally:
        consumer.close()


def poll(consumer: Any, timeout_s: float = 10) -> Any:
    """Return the next record; errors that the client retries are ignored."""
    deadline = monotonic() + timeout_s
    while monotonic() < deadline:
        message = consumer.poll(0.05)
        if message is not None and message.error() is None:
            return message
    return None


@pytest.mark.feature("queues")
@pytest.mark.client("confluent_kafka")
def test_a_record_delayed_by_an_hour_arrives_when_the_clock_has_moved(kafka: Broker):
    topic = kafka.topic(config={"kbroker.delay.enable": True})
    producer = confluent_kafka.Producer({"bootstrap.servers": kafka.bootstrap})
    producer.produce(topic, b"later", headers={"TIMER_DELAY_MS": str(HOUR_MS)})
    producer.produce(topic, b"now")
    assert producer.flush(10) == 0
    with confluent_consumer(kafka, topic, "delayed") as consumer:
        assert poll(consumer).value() == b"now"
        assert poll(consumer, 0.2) is None
        kafka.clock.advance(hours=1)
        assert poll(consumer).value() == b"later"
        # The jump has not ended the session of the member.
        assert len(kafka.wait_group("delayed", members=1).description.members) == 1
        consumer.commit(asynchronous=False)
    kafka.wait_group("delayed", members=0, lag=0)


@pytest.mark.feature("consumer groups")
@pytest.mark.client("confluent_kafka")
def test_a_jump_that_ends_sessions_lets_the_client_join_again(kafka: Broker):
    topic = kafka.topic()
    kafka.produce(topic, [b"1"])
    with confluent_consumer(kafka, topic, "sessions", **{"heartbeat.interval.ms": 100}) as consumer:
        assert poll(consumer).value() == b"1"
        joins = len(kafka.requests("JoinGroup", group="sessions"))
        kafka.clock.advance(hours=1, expire_sessions=True)
        deadline = monotonic() + 10
        while len(kafka.requests("JoinGroup", group="sessions")) == joins and monotonic() < deadline:
            consumer.poll(0.05)
        assert len(kafka.requests("JoinGroup", group="sessions")) > joins


@pytest.mark.feature("acknowledgements")
@pytest.mark.client("kafka_python")
def test_a_producer_retries_a_fault_and_the_requests_show_it(kafka: Broker):
    topic = kafka.topic()
    producer = kafka_python.KafkaProducer(bootstrap_servers=kafka.bootstrap, retry_backoff_ms=10, acks="all")
    try:
        with kafka.fault(api="Produce", topic=topic, error="NOT_LEADER_OR_FOLLOWER", count=3) as fault:
            producer.send(topic, b"v").get(10)
    finally:
        producer.close()
    assert fault.hits == 3
    assert len(kafka.requests("Produce", topic=topic)) == 4
    assert [record.value for record in kafka.consume(topic)] == [b"v"]


@pytest.mark.feature("kill -9")
@pytest.mark.client("kafka_python")
def test_a_consumer_survives_a_broker_that_is_killed_and_started(kafka: Broker):
    topic = kafka.topic()
    kafka.produce(topic, [b"before"])
    consumer = kafka_python.KafkaConsumer(
        topic, bootstrap_servers=kafka.bootstrap, auto_offset_reset="earliest", consumer_timeout_ms=10_000,
        reconnect_backoff_ms=10, reconnect_backoff_max_ms=50, retry_backoff_ms=10,
    )  # fmt: skip
    try:
        assert next(consumer).value == b"before"
        kafka.kill()
        kafka.start()
        kafka.produce(topic, [b"after"])
        assert next(consumer).value == b"after"
    finally:
        consumer.close()


@pytest.mark.feature("transactions")
@pytest.mark.client("confluent_kafka")
def test_a_transaction_that_takes_too_long_is_aborted_when_the_clock_has_moved(kafka: Broker):
    topic = kafka.topic()
    settings = {"bootstrap.servers": kafka.bootstrap, "transactional.id": "slow", "transaction.timeout.ms": 60_000}
    producer = confluent_kafka.Producer(settings)
    producer.init_transactions(10)
    producer.begin_transaction()
    producer.produce(topic, b"lost")
    assert producer.flush(10) == 0
    kafka.clock.advance(minutes=2)
    with pytest.raises(confluent_kafka.KafkaException):
        producer.commit_transaction(10)
    assert kafka.consume(topic, read_committed=True) == []
    assert [record.value for record in kafka.consume(topic)] == [b"lost"]


def run_orders(bootstrap: str, topic: str) -> None:
    """The program of docs/testing.md: it produces an order, and consumes what there is."""
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "retry.backoff.ms": 10})
    producer.produce(topic, b"order")
    assert producer.flush(10) == 0
    settings = {"bootstrap.servers": bootstrap, "group.id": "billing", "auto.offset.reset": "earliest"}
    consumer = confluent_kafka.Consumer({**settings, "enable.partition.eof": True})
    consumer.subscribe([topic])
    ends = 0
    while ends < 3:
        message = consumer.poll(10)
        ends += message.error() is not None
    consumer.close()


@pytest.mark.feature("records")
@pytest.mark.client("confluent_kafka")
def test_the_tests_of_the_docs_pass(
    kafka: Broker, kafka_cluster: Callable[..., Cluster], monkeypatch: pytest.MonkeyPatch
):
    page = Path(__file__).parents[3] / "docs" / "testing.md"
    orders, failover, *_ = re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    monkeypatch.setitem(sys.modules, "orders", SimpleNamespace(run_orders=run_orders))
    tests: dict[str, Any] = {}
    exec(orders + failover, tests)
    tests["test_orders"](kafka)
    tests["test_failover"](kafka_cluster)
