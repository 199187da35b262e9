"""Retries with aiokafka: an AIOKafkaConsumer and an AIOKafkaProducer."""

from collections.abc import Sequence
from typing import Any

from aiokafka import TopicPartition
from aiokafka.errors import CommitFailedError, IllegalGenerationError, RebalanceInProgressError, UnknownMemberIdError

from kbroker.retry.records import OutgoingRecord, ReceivedRecord, sendable_value

REBALANCE_ERRORS = (CommitFailedError, IllegalGenerationError, RebalanceInProgressError, UnknownMemberIdError)


class AiokafkaClients:
    """A consumer and a producer of aiokafka, behind the methods that AsyncRetryingConsumer needs."""

    def __init__(self, consumer: Any, producer: Any) -> None:
        if consumer._enable_auto_commit:
            raise ValueError("the consumer needs enable_auto_commit=False: offsets are committed after the records")
        self._consumer = consumer
        self._producer = producer
        self._sent: list[Any] = []

    async def poll(self, timeout_s: float) -> list[Any]:
        polled = await self._consumer.getmany(timeout_ms=round(timeout_s * 1000))
        return [record for records in polled.values() for record in records]

    def received(self, record: Any) -> ReceivedRecord:
        headers = tuple((name, value) for name, value in record.headers)
        return ReceivedRecord(
            record.topic, record.partition, record.offset, record.key, record.value, headers, record.timestamp
        )

    async def send(self, record: OutgoingRecord) -> None:
        future = await self._producer.send(
            record.topic,
            sendable_value(record),
            record.key,
            record.partition,
            record.timestamp_ms,
            list(record.headers),
        )
        self._sent.append(future)

    async def flush(self) -> None:
        """Wait until all records are acknowledged. Raises the error of the first one that failed."""
        sent, self._sent = self._sent, []
        for future in sent:
            await future

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
        self._sent.clear()
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
