"""The interface of the replica manager for coordinators, and its errors as those of a coordinator."""

from collections.abc import Callable
from typing import Protocol

from kbroker.common import TopicPartition
from kbroker.storage.producers.transactions import TransactionMarker, VerificationGuard
from protocol.errors import ErrorCode


class InternalLog(Protocol):
    """The part of the replica manager that coordinators use."""

    def append_internal(
        self, tp: TopicPartition, batch: bytearray, *, guard: VerificationGuard | None = None, verify: bool = False
    ) -> int:
        """Append one batch and return the log end offset. Raises KafkaError if nothing was appended.

        With `verify`, a transactional batch is rejected unless its transaction is open in the partition, or `guard`
        comes from `begin_verification` and no transaction of the producer has ended since (KIP-890).
        """
        ...

    def max_append_bytes(self, tp: TopicPartition) -> int:
        """Return the size of the largest batch that can be appended now. Raises KafkaError if none can."""
        ...

    def begin_verification(self, tp: TopicPartition, producer_id: int, epoch: int) -> VerificationGuard | None:
        """Return the guard for the first batch of a transaction; None if the transaction is open in the partition.

        Called before the transaction coordinator verifies that the partition is part of the transaction.
        Raises KafkaError.
        """
        ...

    def append_marker(
        self, tp: TopicPartition, marker: TransactionMarker, on_committed: Callable[[ErrorCode], None]
    ) -> None:
        """Append a transaction marker. Never raises.

        `on_committed` is called, perhaps immediately, with NONE when the high watermark has passed the marker, or with
        the error. Markers are reported in log order.
        """
        ...

    def on_committed(self, tp: TopicPartition, offset: int, callback: Callable[[ErrorCode], None]) -> None:
        """Call `callback` once, perhaps immediately.

        The argument is NONE when the high watermark has reached `offset`, or the error because of which it never will.
        """
        ...

    def leader_end_offset(self, tp: TopicPartition, leader_epoch: int) -> int:
        """Return the log end offset of a partition that this broker leads in `leader_epoch`.

        Raises KafkaError otherwise, also while the replica has not taken this role yet.
        """
        ...

    def read_internal_blocking(self, tp: TopicPartition, offset: int, size: int) -> bytes:
        """Return about `size` bytes of complete batches; b"" at the end of the log. Called in a thread.

        Starts at `offset`, or at the log start offset if that is higher.
        """
        ...

    def delete_before(self, tp: TopicPartition, offset: int) -> None:
        """Delete the records below `offset` that are committed. They may return after a crash. Raises KafkaError."""
        ...


# The errors of an append that may succeed with fewer records.
TOO_LARGE = (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE)

_COORDINATOR_ERRORS = {
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.INVALID_FETCH_SIZE: ErrorCode.UNKNOWN_SERVER_ERROR,
}


def coordinator_error(error: ErrorCode) -> ErrorCode:
    """Translate an error of the log to one of the coordinator (CoordinatorOperationExceptionHelper in Kafka)."""
    return _COORDINATOR_ERRORS.get(error, error)
