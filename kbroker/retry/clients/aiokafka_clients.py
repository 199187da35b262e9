"""Retries with aiokafka: an AIOKafkaConsumer and an AIOKafkaProducer."""

from collections.abc import Sequence
from typing import Any

from aiokafka import TopicPartition
from aiokafka.errors import (
    CommitFailedError,
    IllegalGenerationError,
    KafkaError,
    MessageSizeTooLargeError,
    OutOfOrderSequenceNumber,
    RebalanceInProgressError,
    RecordListTooLargeError,
    UnknownMemberIdError,
)

from kbroker.retry.records import OutgoingRecord, ReceivedRecord, sendable_value

REBALANCE_ERRORS = (CommitFailedError, IllegalGenerationError, RebalanceInProgressError, UnknownMemberIdError)
REFUSALS = (MessageSizeTooLargeError, RecordListTooLargeError)


class AiokafkaClients:
    """A consumer and a producer of aiokafka, behind the methods that AsyncRetryingConsumer needs."""

    def __init__(self, consumer: Any, producer: Any) -> None:
        if consumer._enable_auto_commit:
            raise ValueError("the consumer needs enable_auto_commit=False: offsets are committed after the records")
        self._consumer = consumer
        self._producer = producer

    async def poll(self, timeout_s: float) -> list[Any]:
        polled = await self._consumer.getmany(timeout_ms=round(timeout_s * 1000))
        return [record for records in polled.values() for record in records]

    def received(self, record: Any) -> ReceivedRecord:
        headers = tuple((name, value) for name, value in record.headers)
        return ReceivedRecord(
            record.topic, record.partition, record.offset, record.key, record.value, headers, record.timestamp
        )

    async def deliver(self, records: Sequence[OutgoingRecord]) -> list[Exception | None]:
        """Send the records, and wait until they are acknowledged. Returns the error of each."""
        sent = [await self._send(record) for record in records]
        errors: list[Exception | None] = []
        for result in sent:
            error = result
            if not isinstance(result, KafkaError):
                partition, future = result
                try:
                    await future
                    error = None
                except KafkaError as failure:
                    error = failure
                    self._take_back(partition, failure)
            errors.append(error)
        return errors

    async def _send(self, record: OutgoingRecord) -> Any:
        """Return the partition and the future of a record, or the error with which the producer has refused it."""
        producer, key, value, partition = self._producer, record.key, sendable_value(record), record.partition
        try:
            await producer.client._wait_on_metadata(record.topic)
            partition = producer._partition(record.topic, partition, key, value, key, value)
            future = await producer.send(record.topic, value, key, partition, record.timestamp_ms, list(record.headers))
        except KafkaError as error:
            return error
        return TopicPartition(record.topic, partition), future

    def _take_back(self, partition: Any, error: Exception) -> None:
        """Use the sequence number of a refused record again: aiokafka leaves a gap, after which nothing is stored."""
        if self._producer._txn_manager is not None and (self.is_refusal(error) or self.is_consequence(error)):
            self._producer._txn_manager.increment_sequence_number(partition, -1)

    def is_refusal(self, error: Exception) -> bool:
        # INVALID_RECORD is an unknown error for aiokafka.
        return isinstance(error, REFUSALS)

    def is_consequence(self, error: Exception) -> bool:
        return isinstance(error, OutOfOrderSequenceNumber)

    async def commit(self, offsets: dict[tuple[str, int], int]) -> None:
        await self._consumer.commit(self._offsets(offsets))

    async def begin(self) -> None:
        await self._producer.begin_transaction()

    async def commit_transaction(self, offsets: dict[tuple[str, int], int]) -> None:
        """Commit the records and these offsets in the open transaction.

        aiokafka sends the group's name only, so the broker does not notice a member that has lost its partitions.
        """
        await self._producer.send_offsets_to_transaction(self._offsets(offsets), self._consumer._group_id)
        await self._producer.commit_transaction()

    async def abort(self) -> None:
        await self._producer.abort_transaction()

    def rewind(self, partitions: Sequence[tuple[str, int, int]]) -> None:
        """Continue at each (topic, partition, offset) whose partition is still assigned."""
        assigned = self._consumer.assignment()
        for topic, partition, offset in partitions:
            if TopicPartition(topic, partition) in assigned:
                self._consumer.seek(TopicPartition(topic, partition), offset)

    def is_rebalance(self, error: BaseException) -> bool:
        return isinstance(error, REBALANCE_ERRORS)

    @staticmethod
    def _offsets(offsets: dict[tuple[str, int], int]) -> dict[Any, int]:
        return {TopicPartition(*partition): offset for partition, offset in offsets.items()}
