"""Retries with kafka-python: a KafkaConsumer and a KafkaProducer."""

from collections.abc import Sequence
from typing import Any

from kafka import OffsetAndMetadata, TopicPartition
from kafka.errors import CommitFailedError, IllegalGenerationError, RebalanceInProgressError, UnknownMemberIdError

from kbroker.retry.clients.kafka_python_headers import producer_headers
from kbroker.retry.records import OutgoingRecord, ReceivedRecord, sendable_value

REBALANCE_ERRORS = (CommitFailedError, IllegalGenerationError, RebalanceInProgressError, UnknownMemberIdError)


class KafkaPythonClients:
    """A consumer and a producer of kafka-python, behind the methods that RetryingConsumer needs."""

    def __init__(self, consumer: Any, producer: Any, exactly_once: bool) -> None:
        if consumer.config["enable_auto_commit"]:
            raise ValueError("the consumer needs enable_auto_commit=False: offsets are committed after the records")
        self._consumer = consumer
        self._producer = producer
        self._sent: list[Any] = []
        self._exactly_once = exactly_once
        self._member: Any = None
        self._joined: tuple[int, str] | None = None

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

    def send(self, record: OutgoingRecord) -> None:
        headers = producer_headers(record.headers)
        future = self._producer.send(
            record.topic, sendable_value(record), record.key, headers, record.partition, record.timestamp_ms
        )
        self._sent.append(future)

    def flush(self) -> None:
        """Wait until all records are acknowledged. Raises the error of the first one that failed."""
        sent, self._sent = self._sent, []
        if sent:
            self._producer.flush()
        for future in sent:
            future.get(0)

    def commit(self, offsets: dict[tuple[str, int], int]) -> None:
        self._consumer.commit(self._offsets(offsets))

    def begin(self) -> None:
        self._producer.begin_transaction()

    def commit_transaction(self, offsets: dict[tuple[str, int], int]) -> None:
        """Commit the records and these offsets in the open transaction, as the member that received the records."""
        self._producer.send_offsets_to_transaction(self._offsets(offsets), self._member)
        self._producer.commit_transaction()

    def abort(self) -> None:
        self._sent.clear()
        self._producer.abort_transaction()

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
