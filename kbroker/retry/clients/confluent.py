"""Retries with confluent-kafka (librdkafka): a Consumer and a Producer."""

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from kbroker.retry.records import OutgoingRecord, ReceivedRecord

MAX_POLL_RECORDS = 500
TIMEOUT_S = 60.0
REBALANCE_ERRORS = {
    KafkaError.ILLEGAL_GENERATION,
    KafkaError.REBALANCE_IN_PROGRESS,
    KafkaError.UNKNOWN_MEMBER_ID,
    KafkaError._ASSIGNMENT_LOST,
    KafkaError._STATE,
}
# In the transaction after one with a refused record, librdkafka notices that its sequence numbers have a gap.
CONSEQUENCES = {KafkaError._PURGE_INFLIGHT, KafkaError._PURGE_QUEUE}
REFUSALS = {KafkaError.INVALID_RECORD, KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE}


class ConfluentClients:
    """A consumer and a producer of confluent-kafka, behind the methods that RetryingConsumer needs.

    The consumer has enable.auto.commit=false, which cannot be checked here.
    """

    def __init__(self, consumer: Any, producer: Any) -> None:
        self._consumer = consumer
        self._producer = producer
        self._member: Any = None

    def poll(self, timeout_s: float) -> list[Any]:
        first = self._consumer.poll(timeout_s)
        messages = [] if first is None else [first, *self._consumer.consume(MAX_POLL_RECORDS - 1, timeout=0)]
        self._member = self._consumer.consumer_group_metadata()
        for message in messages:
            if message.error() and message.error().code() != KafkaError._PARTITION_EOF:
                raise KafkaException(message.error())
        return [message for message in messages if not message.error()]

    def received(self, message: Any) -> ReceivedRecord:
        kind, timestamp_ms = message.timestamp()
        return ReceivedRecord(
            message.topic(),
            message.partition(),
            message.offset(),
            message.key(),
            message.value(),
            tuple(message.headers() or ()),
            timestamp_ms if kind else -1,
        )

    def deliver(self, records: Sequence[OutgoingRecord]) -> list[Exception | None]:
        """Send the records, and wait until they are acknowledged. Returns the error of each. Raises TimeoutError."""
        errors: list[Exception | None] = [None] * len(records)
        for index, record in enumerate(records):
            optional = {"partition": record.partition, "timestamp": record.timestamp_ms}
            try:
                self._producer.produce(
                    record.topic,
                    record.value,
                    record.key,
                    headers=list(record.headers),
                    on_delivery=partial(_on_delivery, errors, index),
                    **{name: value for name, value in optional.items() if value is not None},
                )
            except KafkaException as error:
                errors[index] = error
            self._producer.poll(0)
        remaining = self._producer.flush(TIMEOUT_S)
        if remaining:
            raise TimeoutError(f"{remaining} records were not acknowledged within {TIMEOUT_S:g} s")
        return errors

    def is_refusal(self, error: Exception) -> bool:
        return isinstance(error, KafkaException) and error.args[0].code() in REFUSALS

    def is_consequence(self, error: Exception) -> bool:
        return isinstance(error, KafkaException) and error.args[0].code() in CONSEQUENCES

    def commit(self, offsets: dict[tuple[str, int], int]) -> None:
        self._consumer.commit(offsets=self._offsets(offsets), asynchronous=False)

    def begin(self) -> None:
        self._producer.begin_transaction()

    def commit_transaction(self, offsets: dict[tuple[str, int], int]) -> None:
        """Commit the records and these offsets in the open transaction, as the member that received the records."""
        self._producer.send_offsets_to_transaction(self._offsets(offsets), self._member, TIMEOUT_S)
        self._producer.commit_transaction(TIMEOUT_S)

    def abort(self) -> None:
        self._producer.abort_transaction(TIMEOUT_S)

    def rewind(self, partitions: Sequence[tuple[str, int, int]]) -> None:
        """Continue at each (topic, partition, offset) whose partition is still assigned."""
        for topic, partition, offset in partitions:
            with suppress(KafkaException):  # not assigned any more
                self._consumer.seek(TopicPartition(topic, partition, offset))

    def is_rebalance(self, error: BaseException) -> bool:
        return isinstance(error, KafkaException) and error.args[0].code() in REBALANCE_ERRORS

    @staticmethod
    def _offsets(offsets: dict[tuple[str, int], int]) -> list[Any]:
        return [TopicPartition(topic, partition, offset) for (topic, partition), offset in offsets.items()]


def _on_delivery(errors: list[Exception | None], index: int, error: Any, _: Any) -> None:
    if error is not None:
        errors[index] = KafkaException(error)
