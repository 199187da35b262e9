"""Retries with kafka-python: a KafkaConsumer and a KafkaProducer."""

import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from kafka import OffsetAndMetadata, TopicPartition
from kafka.errors import (
    CommitFailedError,
    IllegalGenerationError,
    InvalidRecordError,
    KafkaError,
    MessageSizeTooLargeError,
    RebalanceInProgressError,
    RecordListTooLargeError,
    UnknownMemberIdError,
)

from kbroker.retry.records import OutgoingRecord, ReceivedRecord, sendable_value

REBALANCE_ERRORS = (CommitFailedError, IllegalGenerationError, RebalanceInProgressError, UnknownMemberIdError)
TIMEOUT_S = 120.0
REFUSALS = (InvalidRecordError, MessageSizeTooLargeError, RecordListTooLargeError)


class KafkaPythonClients:
    """A consumer and a producer of kafka-python, behind the methods that RetryingConsumer needs."""

    def __init__(self, consumer: Any, producer: Any, exactly_once: bool) -> None:
        if consumer.config["enable_auto_commit"]:
            raise ValueError("the consumer needs enable_auto_commit=False: offsets are committed after the records")
        self._consumer = consumer
        self._producer = producer
        self._exactly_once = exactly_once
        self._member: Any = None
        self._joined: tuple[int, str] | None = None
        self._transactions = producer._transaction_manager
        self._has_sequence_gap = False
        if self._transactions is not None and not exactly_once:
            # An idempotent producer of kafka-python 3.0 sends nothing more after a refused record: its sequence numbers
            # have a gap. A new producer epoch begins without one.
            errors = self._transactions._NEEDS_EPOCH_BUMP_ERRORS
            self._transactions._NEEDS_EPOCH_BUMP_ERRORS = frozenset((*errors, *REFUSALS))

    def poll(self, timeout_s: float) -> list[Any]:
        polled = self._consumer.poll(timeout_ms=round(timeout_s * 1000))
        if self._exactly_once and not self._has_kept_membership():
            return []
        return [record for records in polled.values() for record in records]

    def _has_kept_membership(self) -> bool:
        """Return whether the records of this poll may be processed in a transaction.

        After a rebalance kafka-python 3.0 may continue from positions that other members have passed, and offsets of a
        consumer without a membership are not fenced. So each generation begins at the committed offsets.
        """
        if self._consumer._coordinator.rebalance_in_progress():
            # No later poll continues a rebalance that this poll has not completed.
            self._consumer._coordinator.request_rejoin()
        self._member = self._consumer.group_metadata()
        joined = self._member.generation_id, self._member.member_id
        if self._member.generation_id < 0:
            return False
        if joined != self._joined:
            for tp in self._consumer.assignment():
                self._consumer.committed(tp)  # the first response may be that of an older request
                committed = self._consumer.committed(tp)
                if committed is None:
                    self._consumer.seek_to_beginning(tp)
                else:
                    self._consumer.seek(tp, committed)
            self._joined = joined
            return False
        return True

    def received(self, record: Any) -> ReceivedRecord:
        headers = tuple((name, value) for name, value in record.headers)
        return ReceivedRecord(
            record.topic, record.partition, record.offset, record.key, record.value, headers, record.timestamp
        )

    def deliver(self, records: Sequence[OutgoingRecord]) -> list[Exception | None]:
        """Send the records, and wait until they are acknowledged. Returns the error of each."""
        sent = [self._send(record) for record in records]
        # It raises an error if the producer has split a batch that was too large. The futures know better.
        with suppress(KafkaError):
            self._producer.flush()
        errors: list[Exception | None] = []
        for future in sent:
            if not isinstance(future, KafkaError):
                try:
                    future.get(TIMEOUT_S)
                except KafkaError as error:
                    future = error
                    self._has_sequence_gap |= self.is_refusal(error)
            errors.append(future if isinstance(future, KafkaError) else None)
        return errors

    def _send(self, record: OutgoingRecord) -> Any:
        """Return the future of a record, or the error with which the producer has refused it."""
        headers = producer_headers(record.headers)
        try:
            return self._producer.send(
                record.topic, sendable_value(record), record.key, headers, record.partition, record.timestamp_ms
            )
        except KafkaError as error:
            return error

    def is_refusal(self, error: Exception) -> bool:
        return isinstance(error, REFUSALS)

    def is_consequence(self, error: Exception) -> bool:
        return False

    def commit(self, offsets: dict[tuple[str, int], int]) -> None:
        self._consumer.commit(self._offsets(offsets))

    def begin(self) -> None:
        self._producer.begin_transaction()

    def commit_transaction(self, offsets: dict[tuple[str, int], int]) -> None:
        """Commit the records and these offsets in the open transaction, as the member that received the records."""
        self._producer.send_offsets_to_transaction(self._offsets(offsets), self._member)
        self._producer.commit_transaction()

    def abort(self) -> None:
        self._producer.abort_transaction()
        if self._has_sequence_gap:
            self._has_sequence_gap = False
            self._transactions.bump_producer_id_and_epoch()
            self._producer._sender.wakeup()
            deadline = time.monotonic() + TIMEOUT_S
            while self._transactions.is_bumping_epoch() and time.monotonic() < deadline:
                time.sleep(0.01)

    def rewind(self, partitions: Sequence[tuple[str, int, int]]) -> None:
        """Continue at each (topic, partition, offset) whose partition is still assigned."""
        assigned = self._consumer.assignment()
        for topic, partition, offset in partitions:
            if TopicPartition(topic, partition) in assigned:
                self._consumer.seek(TopicPartition(topic, partition), offset)

    def is_rebalance(self, error: BaseException) -> bool:
        return isinstance(error, REBALANCE_ERRORS)

    @staticmethod
    def _offsets(offsets: dict[tuple[str, int], int]) -> dict[Any, Any]:
        return {TopicPartition(*partition): OffsetAndMetadata(offset, "", -1) for partition, offset in offsets.items()}


# Headers with a null value: the producer encodes them, but `send` refuses them. Empty values instead would change
# records when they pass through retry and dead-letter topics.


class _NullHeader(tuple[str, None]):
    """A header that unpacks to its null value, while `header[1]`, which `send` checks, is empty."""

    __slots__ = ()

    def __getitem__(self, index: Any) -> Any:
        return b"" if index == 1 else super().__getitem__(index)


class _Headers(list[Any]):
    """A list that is false even with headers. Otherwise the producer would add up the lengths of their values."""

    __slots__ = ()

    def __bool__(self) -> bool:
        return False


def producer_headers(headers: Sequence[tuple[str, bytes | None]]) -> list[Any]:
    """Return headers as KafkaProducer.send accepts them."""
    if all(value is not None for _, value in headers):
        return list(headers)
    return _Headers([(name, value) if value is not None else _NullHeader((name, None)) for name, value in headers])
