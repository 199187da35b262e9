"""The results of a Produce request's batches, and the verified partitions of a transactional one."""

from __future__ import annotations

from kbroker.common import KafkaError
from kbroker.replica.partition import ACKS_ALL, Partition
from kbroker.replica.produce.batch_validation import NotOneBatchError
from kbroker.replica.produce.delayed_produce import NO_RECORD_ERRORS, UnacknowledgedBatch
from kbroker.replica.produce.record_validation import InvalidRecordsError
from kbroker.storage.producers.transactions import VerificationGuard
from protocol.errors import ErrorCode
from protocol.fast.produce import PartitionRecords, PartitionResult, TopicRecords, TopicResult

# (topic name or id, partition index), as in the request.
PartitionKey = tuple[str | bytes, int]


class VerificationError(KafkaError):
    """The coordinator did not confirm that the partition is part of the transaction."""

    def __init__(self, code: ErrorCode, message: str | None = None) -> None:
        super().__init__(code, message)


class VerifiedPartitions:
    """The result of the verification (KIP-890, api/transactional_produce.py). `must_verify`: a batch may begin a
    transaction only with its guard.

    Partitions in which the transaction is open already have neither a guard nor an error.
    """

    __slots__ = ("errors", "guards", "must_verify")

    def __init__(self, must_verify: bool) -> None:
        self.must_verify = must_verify
        self.guards: dict[PartitionKey, VerificationGuard] = {}
        self.errors: dict[PartitionKey, VerificationError] = {}

    def guard_of(self, key: PartitionKey) -> VerificationGuard | None:
        """Return the partition's guard, or None. Raises VerificationError if the verification failed."""
        error = self.errors.get(key)
        if error is not None:
            raise error.with_traceback(None)
        return self.guards.get(key)


ProduceResponse = list[TopicResult]

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
    """Make the response wait for the batch with the next result, if it must be committed or synced first."""
    if acks == ACKS_ALL or partition.flush_before_ack:
        unacknowledged.append(UnacknowledgedBatch(partition, end_offset, results, len(results), acks == ACKS_ALL))


def copied(topics: list[TopicRecords]) -> list[TopicRecords]:
    """Copy the batches of a request, whose buffers are reused."""
    return [(key, [(index, _copy(records)) for index, records in partitions]) for key, partitions in topics]


def copied_from(topics: list[TopicRecords], partitions: list[PartitionRecords], start: int) -> list[TopicRecords]:
    """Copy the batches from the one at `partitions[start]` on. `partitions`: the object in one of the topics."""
    position = next(position for position, topic in enumerate(topics) if topic[1] is partitions)
    return copied([(topics[position][0], partitions[start:]), *topics[position + 1 :]])


def _copy(records: memoryview | None) -> memoryview | None:
    return None if records is None else memoryview(bytearray(records))
