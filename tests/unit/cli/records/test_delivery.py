"""Delivery: bytes in flight are bounded, the first failure ends it, acknowledged records are counted."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
from kafka.errors import MessageSizeTooLargeError
from kafka.future import Future

from kbroker.cli.common.errors import CliError
from kbroker.cli.records import produce as delivery_module
from kbroker.cli.records.formats import ProducerRecord
from kbroker.cli.records.produce import CLOSE_TIMEOUT_S, Delivery, DeliveryFailed


class FakeProducer:
    """A kafka.KafkaProducer whose futures the test completes."""

    def __init__(self, **config: Any) -> None:
        self.sent: list[tuple[dict[str, Any], Future]] = []
        self.on_flush: Callable[[], None] = lambda: None
        self.closed_with: float | None = -1

    def send(self, topic: str, **record: Any) -> Future:
        if record["partition"] == 99:
            raise ValueError("Unrecognized partition 99 for topic t")
        future = Future()
        self.sent.append((record, future))
        return future

    def flush(self) -> None:
        self.on_flush()

    def close(self, timeout: float | None = None) -> None:
        self.closed_with = timeout


@pytest.fixture
def delivery(monkeypatch: pytest.MonkeyPatch) -> tuple[Delivery, FakeProducer]:
    monkeypatch.setattr("kafka.KafkaProducer", FakeProducer)
    opened = Delivery("t", {})
    return opened, opened._producer


def test_acknowledged_records_are_counted(delivery: tuple[Delivery, FakeProducer]) -> None:
    opened, producer = delivery
    with opened:
        opened.send(ProducerRecord(b"k", b"v", [("h", b"1"), ("n", None)], 2, 5), 1)
        opened.send(ProducerRecord(None, b"w", []), 2)
        record, _ = producer.sent[0]
        assert record == {
            "key": b"k",
            "value": b"v",
            "headers": [("h", b"1"), ("n", None)],
            "partition": 2,
            "timestamp_ms": 5,
        }
        producer.on_flush = lambda: [future.success(None) for _, future in producer.sent] and None
        opened.finish()
    assert opened.acknowledged == 2
    assert producer.closed_with is None


def test_the_first_failure_ends_the_delivery_within_the_close_timeout(delivery: tuple[Delivery, FakeProducer]) -> None:
    opened, producer = delivery
    opened.send(ProducerRecord(None, b"v", []), 1)
    opened.send(ProducerRecord(None, b"v", []), 2)
    producer.sent[0][1].success(None)
    producer.sent[1][1].failure(MessageSizeTooLargeError("the broker says no"))
    with pytest.raises(DeliveryFailed) as failed, opened:
        opened.send(ProducerRecord(None, b"v", []), 3)
    assert str(failed.value) == "record 2: the broker says no (MESSAGE_TOO_LARGE) (1 record acknowledged)"
    assert len(producer.sent) == 2
    assert producer.closed_with == CLOSE_TIMEOUT_S


def test_a_record_without_key_and_value_is_rejected(delivery: tuple[Delivery, FakeProducer]) -> None:
    opened, producer = delivery
    with pytest.raises(CliError, match="needs a key or a value"), opened:
        opened.send(ProducerRecord(None, None, []), 1)
    assert producer.sent == []


def test_an_argument_error_of_the_client_keeps_its_message(delivery: tuple[Delivery, FakeProducer]) -> None:
    opened, _ = delivery
    with pytest.raises(CliError, match=r"^Unrecognized partition 99 for topic t$"), opened:
        opened.send(ProducerRecord(None, b"v", [], 99), 1)


def test_send_blocks_while_too_many_bytes_are_in_flight(
    delivery: tuple[Delivery, FakeProducer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery_module, "MAX_IN_FLIGHT_BYTES", 1000)
    opened, producer = delivery
    opened.send(ProducerRecord(None, b"x" * 2000, []), 1)
    sender = threading.Thread(target=opened.send, args=(ProducerRecord(None, b"v", []), 2))
    sender.start()
    sender.join(0.1)
    assert sender.is_alive()
    assert len(producer.sent) == 1
    producer.sent[0][1].success(None)
    sender.join(60)
    assert not sender.is_alive()
    assert len(producer.sent) == 2
