"""The second phase of ending transactions: once the prepare is committed, every partition is told, and when all have
it written down, so is the transaction's end.

    PrepareX committed -> marker to each partition, again until it is there -> CompleteX
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from kbroker.coordinator.transaction.end_transaction import marker
from kbroker.runtime.event_log import EventLogger
from protocol.errors import ErrorCode

if TYPE_CHECKING:
    from kbroker.common import TopicPartition
    from kbroker.coordinator.internal_log import MarkerWriter, TransactionMarker
    from kbroker.coordinator.transaction.transaction_metadata import TransactionMetadata
    from kbroker.metadata.image import MetadataImage
    from kbroker.runtime.environment import Environment

log = EventLogger("kbroker.transactions")

# After an error that may pass; twice as long each time, up to the second figure.
AGAIN_S, AGAIN_MAX_S = 0.1, 2.0
# The pause with which the log says so. After a start the groups' partitions are still being loaded, for a moment.
TOLD_AT_S = 8 * AGAIN_S

# The partition can never have got records of the transaction.
_NEVER_WRITTEN = frozenset({ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT, ErrorCode.UNSUPPORTED_VERSION})


class TransactionMarkerSender:
    """One transaction on its way from prepared to completed. `remaining`: partitions that have not yet said that the
    marker is there."""

    __slots__ = (
        "_again",
        "_all_written",
        "_completions",
        "_delayed",
        "_marker",
        "_pause_s",
        "remaining",
        "transaction",
    )

    def __init__(
        self, completions: MarkerSenders, transaction: TransactionMetadata, epoch: int, all_written: Callable[[], None]
    ) -> None:
        self.transaction = transaction
        self.remaining = set(transaction.partitions)
        self._completions = completions
        self._marker: TransactionMarker = marker(transaction, epoch)
        self._all_written = all_written
        self._again: list[TopicPartition] = []
        self._pause_s = AGAIN_S
        # A partition of which the log has said that it does not take its marker.
        self._delayed: TopicPartition | None = None

    def send(self) -> None:
        """In order of topics and partitions, so that a run can be repeated."""
        if not self.remaining:
            self._all_written()
            return
        for tp in sorted(self.remaining):
            self._send(tp)

    def _send(self, tp: TopicPartition) -> None:
        if self._completions.is_gone(tp):
            self._done(tp)
        else:
            self._completions.markers.write_marker(tp, self._marker, partial(self._answered, tp))

    def _answered(self, tp: TopicPartition, error: ErrorCode) -> None:
        """What each error means is Kafka's way, but for INVALID_PRODUCER_EPOCH."""
        if tp not in self.remaining or not self._completions.is_under_way(self):
            return
        if error is ErrorCode.NONE or error in _NEVER_WRITTEN:
            self._done(tp)
        elif error is ErrorCode.INVALID_PRODUCER_EPOCH:
            # The partition has a later epoch of the producer: this transaction is over there, and a marker would not
            # change anything. Kafka leaves the transaction prepared then, for ever if no other coordinator has it.
            self._tell("a partition has a later epoch than a transaction's marker", tp, error)
            self._done(tp)
        elif error is ErrorCode.TRANSACTION_COORDINATOR_FENCED:
            # Another coordinator has the transaction, and completes it.
            self._tell("another coordinator writes a transaction's markers", tp, error)
            self._completions.drop(self)
        else:
            self._try_again(tp, error)

    def _done(self, tp: TopicPartition) -> None:
        self.remaining.discard(tp)
        if not self.remaining:
            if self._delayed is not None:
                log.info("a transaction's markers are written", **self._subject(self._delayed))
            self._all_written()

    def _try_again(self, tp: TopicPartition, error: ErrorCode) -> None:
        """All that fail within a pause are sent again at its end."""
        if not self._again:
            if self._delayed is None and self._pause_s >= TOLD_AT_S:
                self._delayed = tp
                self._tell("a transaction's marker cannot be written yet", tp, error)
            self.later(self._send_again)
        self._again.append(tp)

    def later(self, action: Callable[[], None]) -> None:
        """Do something after a pause, if the completion is still under way then."""
        self._completions.environment.loop.call_later(self._pause_s, self._if_under_way, action)
        self._pause_s = min(2 * self._pause_s, AGAIN_MAX_S)

    def _if_under_way(self, action: Callable[[], None]) -> None:
        if self._completions.is_under_way(self):
            action()

    def _send_again(self) -> None:
        again, self._again = self._again, []
        for tp in again:
            self._send(tp)

    def _tell(self, message: str, tp: TopicPartition, error: ErrorCode) -> None:
        log.warning(message, **self._subject(tp), reason=error.name)

    def _subject(self, tp: TopicPartition) -> dict[str, object]:
        transaction = self.transaction
        return {
            "transactional_id": transaction.transactional_id,
            "partition": tp,
            "producer_id": transaction.producer_id,
            "epoch": transaction.producer_epoch,
        }


class MarkerSenders:
    """The completions of one coordinator partition, by transactional id."""

    def __init__(self, environment: Environment, metadata: MetadataImage, markers: MarkerWriter) -> None:
        self.environment = environment
        self.markers = markers
        self._metadata = metadata
        self._by_id: dict[str, TransactionMarkerSender] = {}

    def begin(
        self, transaction: TransactionMetadata, epoch: int, all_written: Callable[[TransactionMarkerSender], None]
    ) -> None:
        """A transaction is prepared, and that is committed. `epoch` is the coordinator's."""
        completion = TransactionMarkerSender(self, transaction, epoch, lambda: all_written(completion))
        self._by_id[transaction.transactional_id] = completion
        completion.send()

    def get(self, transactional_id: str) -> TransactionMarkerSender | None:
        return self._by_id.get(transactional_id)

    def is_under_way(self, completion: TransactionMarkerSender) -> bool:
        return self._by_id.get(completion.transaction.transactional_id) is completion

    def drop(self, completion: TransactionMarkerSender) -> None:
        """It is through, or no longer this broker's."""
        del self._by_id[completion.transaction.transactional_id]

    def clear(self) -> None:
        self._by_id.clear()

    def is_gone(self, tp: TopicPartition) -> bool:
        """Its topic is deleted: nothing is left to end there."""
        return self._metadata.partition(tp.topic, tp.partition) is None
