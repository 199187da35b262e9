"""The results of a Produce request's batches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from kbroker.replica.partition import ACKS_ALL, Partition
from kbroker.replica.produce.batch_validation import NotOneBatchError
from kbroker.replica.produce.delayed_produce import NO_RECORD_ERRORS, UnacknowledgedBatch
from kbroker.replica.produce.record_validation import InvalidRecordsError
from kbroker.replica.produce.transaction_verification import VerificationError
from protocol.errors import ErrorCode
from protocol.fast.produce import PartitionResult, TopicRecords, TopicResult

if TYPE_CHECKING:
    from kbroker.common import KafkaError
    from protocol.fast.fetch import TopicKey

ProduceResponse = list[TopicResult]
# A batch that is not appended yet: (topic, partition, records, list for its result).
RemainingBatch = tuple["TopicKey", int, memoryview | None, list[PartitionResult]]

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


def await_acknowledgement(
    partition: Partition,
    end_offset: int,
    acks: int,
    results: list[PartitionResult],
    unacknowledged: list[UnacknowledgedBatch],
) -> None:
    """Let the response wait for the batch whose result is the next one, if that must be committed or synced first."""
    if acks == ACKS_ALL or partition.flush_before_ack:
        unacknowledged.append(UnacknowledgedBatch(partition, end_offset, results, len(results), acks == ACKS_ALL))


def all_remaining(topics: list[TopicRecords], response: ProduceResponse) -> Iterator[RemainingBatch]:
    """Return the batches of a request one after another, without copying them, and add their topics to the response."""
    for key, partitions in topics:
        results: list[PartitionResult] = []
        if partitions:
            response.append((key, results))
        for index, records in partitions:
            yield key, index, records, results


def copy_remaining(topics: list[TopicRecords], response: ProduceResponse) -> list[RemainingBatch]:
    """Copy the batches without a result yet, and add their topics to the response."""
    remaining: list[RemainingBatch] = []
    results_by_position = iter([results for _, results in response])
    for key, partitions in topics:
        if not partitions:
            continue
        results = next(results_by_position, None)
        if results is None:
            results = []
            response.append((key, results))
        for index, records in partitions[len(results) :]:
            copy = None if records is None else memoryview(bytearray(records))
            remaining.append((key, index, copy, results))
    return remaining
