"""Produce responses: the results of batches, the wait for acknowledgements, verified partitions of a transaction."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from kbroker.common import KafkaError
from kbroker.replica.partition import Partition
from kbroker.replica.produce.batch_validation import NotOneBatchError
from kbroker.replica.produce.record_rules import InvalidRecordsError
from kbroker.runtime.delayed_response import DelayedResponse, Purgatory
from kbroker.runtime.turns import paced
from kbroker.storage.producers.transactions import VerificationGuard
from protocol.errors import ErrorCode
from protocol.fast.current_leader import CurrentLeader
from protocol.fast.fetch import TopicKey
from protocol.fast.produce import PartitionRecords, PartitionResult, TopicRecords, TopicResult

NO_RECORD_ERRORS: tuple[tuple[int, str | None], ...] = ()


class UnacknowledgedBatch(NamedTuple):
    """An appended batch, which is acknowledged when everything below `end_offset` is committed.

    With acks=1 it only has to be synced on this broker (flush.before.ack). Its result is already in the response, at
    `results[position]`.
    """

    partition: Partition
    end_offset: int
    results: list[PartitionResult]
    position: int
    waits_for_commit: bool


class DelayedProduce(DelayedResponse[list[TopicResult]]):
    """A request with batches that are not committed yet, or not synced yet (flush.before.ack)."""

    __slots__ = ("_batches", "_current_leader", "_listener", "_missing", "_results")

    def __init__(
        self,
        purgatory: Purgatory,
        deadline_ms: int,
        response: list[TopicResult],
        batches: list[UnacknowledgedBatch],
        current_leader: Callable[[TopicKey, int, str], CurrentLeader | None],
        listener: str,
        in_turn: bool,
    ) -> None:
        """`deadline_ms`: the end of the wait (monotonic). `in_turn`: whether the caller is in a turn."""
        super().__init__(purgatory)
        self._current_leader = current_leader
        self._listener = listener
        self._results = response
        self._batches = batches
        # The indexes in `batches` of those that are not acknowledged yet.
        self._missing = set(range(len(batches)))
        purgatory.set(self, deadline_ms)
        numbered = enumerate(batches)
        for number, batch in paced(numbered) if in_turn else numbered:
            wait = batch.partition.on_committed if batch.waits_for_commit else batch.partition.on_synced
            wait(batch.end_offset, partial(self._on_acknowledged, number))

    def _on_acknowledged(self, number: int, code: ErrorCode) -> None:
        if self.is_done:
            return
        self._missing.discard(number)
        batch = self._batches[number]
        if not code and batch.waits_for_commit and batch.partition.state.is_under_min_isr:
            code = ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
        if code:
            self._set_error(number, code)
        if not self._missing:
            self.complete(self._results)

    def expire(self) -> None:
        for number in paced(list(self._missing)):
            if self.is_done:
                return
            if number in self._missing:
                self._set_error(number, ErrorCode.REQUEST_TIMED_OUT)
        self.complete(self._results)

    def _set_error(self, number: int, code: ErrorCode) -> None:
        batch = self._batches[number]
        index = batch.results[batch.position][0]
        leader = None
        if code == ErrorCode.NOT_LEADER_OR_FOLLOWER:
            leader = self._current_leader(batch.partition.topic_id, index, self._listener)
        batch.results[batch.position] = error_result(index, code, leader)


def error_result(index: int, code: ErrorCode, message: str | CurrentLeader | None = None) -> PartitionResult:
    """Return the result of a partition whose batch was not appended or not acknowledged."""
    return (index, int(code), -1, -1, -1, NO_RECORD_ERRORS, message)


# (topic name or id, partition index), as in the request.
PartitionKey = tuple[str | bytes, int]


class VerificationError(KafkaError):
    """The coordinator did not confirm that the partition is part of the transaction."""

    def __init__(self, code: ErrorCode, message: str | None = None) -> None:
        super().__init__(code, message)


@dataclass(slots=True, eq=False)
class VerifiedPartitions:
    """The result of the verification (KIP-890, api/transactional_produce.py). `must_verify`: a batch may begin a
    transaction only with its guard.

    Partitions in which the transaction is open already have neither a guard nor an error.
    """

    must_verify: bool
    guards: dict[PartitionKey, VerificationGuard] = field(default_factory=dict)
    errors: dict[PartitionKey, VerificationError] = field(default_factory=dict)

    def guard_of(self, key: PartitionKey) -> VerificationGuard | None:
        """Return the partition's guard, or None. Raises VerificationError if the verification failed."""
        error = self.errors.get(key)
        if error is not None:
            raise error.with_traceback(None)
        return self.guards.get(key)


ProduceResponse = list[TopicResult]
# The results of the topic whose batches are being appended, the response so far, and the batches that it waits for.
ProduceProgress = tuple[list[PartitionResult], ProduceResponse, list[UnacknowledgedBatch]]

# With these errors Kafka sends the log start offset, if they come from the log or the records.
ERRORS_WITH_LOG_START_OFFSET = {
    ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.INVALID_RECORD,
    ErrorCode.INVALID_TIMESTAMP,
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    ErrorCode.DUPLICATE_SEQUENCE_NUMBER,
    ErrorCode.INVALID_TXN_STATE,
}


def append_error_result(index: int, error: KafkaError, partition: Partition | None) -> PartitionResult:
    """Return the result of a batch that was not appended. `partition`: None if it is not on this broker."""
    log_start_offset = -1
    if (
        partition is not None
        and error.code in ERRORS_WITH_LOG_START_OFFSET
        and not isinstance(error, NotOneBatchError | VerificationError)
    ):
        log_start_offset = partition.log.log_start_offset
    record_errors = tuple(error.record_errors) if isinstance(error, InvalidRecordsError) else NO_RECORD_ERRORS
    return (index, int(error.code), -1, -1, log_start_offset, record_errors, error.message)


def copied(topics: list[TopicRecords]) -> list[TopicRecords]:
    """Copy the batches of a request, whose buffers are reused."""
    return [(key, [(index, _copy(records)) for index, records in partitions]) for key, partitions in topics]


def copied_from(topics: list[TopicRecords], partitions: list[PartitionRecords], start: int) -> list[TopicRecords]:
    """Copy the batches from the one at `partitions[start]` on. `partitions`: the object in one of the topics."""
    position = next(position for position, topic in enumerate(topics) if topic[1] is partitions)
    return copied([(topics[position][0], partitions[start:]), *topics[position + 1 :]])


def _copy(records: memoryview | None) -> memoryview | None:
    return None if records is None else memoryview(bytearray(records))
