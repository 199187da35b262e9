"""Delivers records with bounded memory, and stops at the first failure."""

import threading
from contextlib import suppress
from typing import Any

from kbroker.cli.common.client import client_error_text, client_errors
from kbroker.cli.common.errors import CliError
from kbroker.cli.common.formatting import count_text
from kbroker.cli.records.formats import ProducerRecord

MAX_IN_FLIGHT_BYTES = 32 << 20
CLOSE_TIMEOUT_S = 2


class DeliveryFailed(CliError):
    """A record that was sent earlier was not acknowledged."""


class Delivery:
    """A KafkaProducer with a bound on bytes in flight, which kafka-python itself does not have.

    Counts acknowledged records and stops at the first failure.
    """

    def __init__(self, topic: str, config: dict[str, Any]) -> None:
        from kafka import KafkaProducer

        from kbroker.retry.clients.kafka_python_headers import producer_headers

        self._topic = topic
        self._headers = producer_headers
        self._changed = threading.Condition()
        self._in_flight_bytes = 0
        self._failure: str | None = None
        self.acknowledged = 0
        with client_errors():
            self._producer = KafkaProducer(**config)

    def __enter__(self) -> "Delivery":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._producer.close()
            return
        with suppress(Exception):  # the exception that ends the command is reported
            self._producer.close(timeout=CLOSE_TIMEOUT_S)
        # If close failed, the producer's finalizer would close again and print a traceback.
        self._producer._closed = True

    def send(self, record: ProducerRecord, number: int) -> None:
        """Send one record; blocks while too many bytes are in flight. `number` is for error messages."""
        if record.key is None and record.value is None:
            raise CliError("a record needs a key or a value")
        size = record.size()
        with self._changed:
            while self._in_flight_bytes > MAX_IN_FLIGHT_BYTES and self._failure is None:
                self._changed.wait()
            self._raise_failure()
            self._in_flight_bytes += size
        with client_errors():
            future = self._producer.send(
                self._topic,
                value=record.value,
                key=record.key,
                headers=self._headers(record.headers),
                partition=record.partition,
                timestamp_ms=record.timestamp,
            )
        future.add_both(self._on_completion, size, number)

    def _on_completion(self, size: int, number: int, result: object) -> None:
        # Called on the producer's thread.
        with self._changed:
            self._in_flight_bytes -= size
            if isinstance(result, BaseException):
                self._failure = self._failure or f"record {number}: {client_error_text(result)}"
            else:
                self.acknowledged += 1
            self._changed.notify()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise DeliveryFailed(f"{self._failure} ({count_text(self.acknowledged, 'record')} acknowledged)")

    def finish(self) -> None:
        """Wait until every record is acknowledged; raises DeliveryFailed for the first that failed."""
        with client_errors():
            self._producer.flush()
        with self._changed:
            while self._in_flight_bytes and self._failure is None:
                self._changed.wait()
            self._raise_failure()
