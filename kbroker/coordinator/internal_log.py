"""The internal topics, and what coordinators need of the replica manager."""

from collections.abc import Callable
from typing import Protocol

from kbroker.common import TopicPartition
from kbroker.storage.producers.transaction_marker import TransactionMarker
from kbroker.storage.producers.verification import VerificationGuard
from protocol.errors import ErrorCode

GROUP_METADATA_TOPIC = "__consumer_offsets"
TRANSACTION_STATE_TOPIC = "__transaction_state"


class InternalLog(Protocol):
    """The replica manager, as far as coordinators use it."""

    def append_internal(
        self, tp: TopicPartition, batch: bytearray, *, guard: VerificationGuard | None = None, verify: bool = False
    ) -> int:
        """Append one batch and return the log end offset. Raises KafkaError if nothing was appended.

        With `verify`, a transactional batch is rejected unless its transaction is open in the partition, or `guard` is
        what `begin_verification` returned and no transaction of the producer has ended since (KIP-890).
        """
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
        """Append a transaction marker. `on_committed` is called, perhaps at once, with NONE when the high watermark
        has passed the marker, or with the error; of several markers in log order. Never raises.
        """
        ...

    def on_committed(self, tp: TopicPartition, offset: int, callback: Callable[[ErrorCode], None]) -> None:
        """Call back once, perhaps at once: with NONE when the high watermark has reached `offset`, or with the reason
        why it never will.
        """
        ...

    def read_internal_blocking(self, tp: TopicPartition, offset: int, size: int) -> bytes:
        """Return about `size` bytes of whole batches from `offset`, or from the log start offset if that is higher;
        b"" at the end. Called in a thread.
        """
        ...
